"""URLs of Redis: the only place that reads them.

Kombu reads the URLs of connections itself and passes the parts; :func:`address_of` makes an
address from either. No error shows a possible part of a password, nor does an exception
chained to it: ``urllib`` quotes text that it cannot read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..errors import ConfigurationError
from ..options import parse
from .connect import Address
from .tls import tls_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PORT = 6379
KOMBUS = {
    "redis": "reliq",
    "rediss": "reliqs",
    "redis+socket": "reliq-unix",
    "socket": "reliq-unix",
    "unix": "reliq-unix",
    "sentinel": "reliq-sentinel",
}
"""Kombu's scheme -> reliq's scheme for the same server."""

_ENCODED = "in a password, percent-encode the special characters of URLs (/ ? # [ ] @ : ; %)"
# The query parameters of a socket's URL, as in Kombu's redis+socket://.
_OF_SOCKET = ("virtual_host", "username", "password")
# Parameters that Kombu reads for other transports, and that reliq ignores.
_NO_MATTER = frozenset({"connect_timeout", "heartbeat", "insist", "login_method"})


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parts of one URL; None if missing. Its repr shows no password."""

    scheme: str
    host: str | None = None
    port: int | None = None
    path: str = ""
    username: str | None = None
    password: Any = field(default=None, repr=False)
    tls: Any = field(default=None, repr=False)
    """Kombu's ``ssl``: the TLS options in the query."""
    query: dict[str, str] = field(default_factory=dict, repr=False)
    """The other parameters."""


def read(url: str, schemes: Iterable[str]) -> Parsed:
    """Return the parts of *url*, unquoted. Raises ConfigurationError; shows no password."""
    parts = _split(url)
    if parts is None:
        raise ConfigurationError(
            f"expected a URL such as reliq://host:6379/0, got an unreadable one; {_ENCODED}"
        )
    if parts.scheme not in schemes:
        if ours := our_scheme(parts.scheme):  # a known word reveals nothing
            raise ConfigurationError(
                f"expected a URL of {ours}://, got: {parts.scheme}://, which is Kombu's own "
                f"transport: write {ours}:// instead"
            )
        if "://" not in url:
            raise ConfigurationError(
                "expected a URL such as reliq://host:6379/0, got one without a scheme: write "
                f"reliq:// before the host; {_ENCODED}"
            )
        expected = ", ".join(f"{name}://" for name in schemes)
        # With an @, it may be a part of a password.
        got = "another" if "@" in url else parts.scheme
        raise ConfigurationError(f"expected a URL of {expected}, got: {got}; {_ENCODED}")
    if parts.fragment or "@" in parts.query:
        raise ConfigurationError(
            f"expected a URL without #, and without @ after its ?, got one with it; {_ENCODED}, "
            "and @ as %40 after the ?"
        )
    port = _port(parts)
    if port is None:
        raise ConfigurationError(
            f"expected one host and a numeric port in a {parts.scheme}:// URL; several are "
            f"separated by ';', each with its scheme; {_ENCODED}"
        )
    query = dict(parse_qsl(parts.query))
    tls: Any = {name: query.pop(name) for name in list(query) if name.startswith("ssl_")}
    switched = query.pop("ssl", None)
    options = parse({"credential_provider": query.pop("credential_provider", None)})
    return Parsed(
        parts.scheme,
        unquote(parts.hostname or "") or None,
        port or None,
        unquote(parts.path),
        unquote(parts.username or "") or None,
        options.credential_provider or unquote(parts.password or "") or None,
        tls or switched,
        {name: value for name, value in query.items() if name not in _NO_MATTER},
    )


def our_scheme(scheme: str) -> str | None:
    """Return reliq's scheme for *scheme*, which is Kombu's or a combination of both."""
    return KOMBUS.get(scheme.removeprefix("reliq+"))


def scheme_of(url: str) -> str:
    """Return the scheme of *url*, or "" without one."""
    parts = _split(url)
    return "" if parts is None else parts.scheme


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:  # a bracket, or a character that normalises to another one
        return None


def _port(parts: SplitResult) -> int | None:
    """Return the port, 0 if there is none, None if it is not a number."""
    try:
        return parts.port or 0
    except ValueError:
        return None


def database(text: str | None, *, show: bool = False) -> int:
    """Return the number of the database in a URL. Raises ConfigurationError.

    show: include a wrong value in the error; it may be the rest of a password with a slash.
    """
    number = str(text or "").strip("/") or "0"
    if number.isascii() and number.isdigit():
        return int(number)
    got = repr(number) if show else f"something else; {_ENCODED}"
    raise ConfigurationError(f"expected the database in the URL to be a number, got: {got}")


def address_of(parsed: Parsed, *, default_port: int = PORT, show: bool = False) -> Address:
    """Return the address in a URL that was read here or by Kombu. Raises ConfigurationError.

    ``reliqs://`` and any TLS option (``?ssl_...``, Kombu's ``ssl``) request TLS. show: as for
    :func:`database`.
    """
    query, of_socket = dict(parsed.query), parsed.scheme == "reliq-unix"
    stated = {name: query.pop(name, None) if of_socket else None for name in _OF_SOCKET}
    if query:
        known = ", ".join(_OF_SOCKET) if of_socket else "names that begin with ssl_"
        raise ConfigurationError(
            f"unknown in the query of a {parsed.scheme}:// URL: "
            f"{', '.join(sorted(query))}: only {known} are allowed"
        )
    if of_socket:
        return Address(
            path=parsed.path,
            db=database(stated["virtual_host"], show=show),
            username=parsed.username or stated["username"],
            password=parsed.password or stated["password"],
        )
    if parsed.host in {"socket", "unix"} and parsed.path.count("/") > 1:
        raise ConfigurationError(
            "expected a URL of reliq-unix:///path, got another scheme before it"
        )
    secure = parsed.scheme == "reliqs"
    return Address(
        host=parsed.host or "localhost",
        port=parsed.port or default_port,
        db=database(parsed.path, show=show),
        username=parsed.username,
        password=parsed.password,
        tls=tls_options(parsed.tls, always=secure) if secure or parsed.tls else None,
    )


def together(urls: Sequence[Parsed], *, username: str | None, password: Any, tls: Any) -> Parsed:
    """Return the combined parts of the URLs of one broker; the host is that of the first.

    *username*, *password* and *tls* (Kombu's ``ssl``) apply if no URL has any. Raises
    ConfigurationError, without showing a password, if the URLs do not agree.
    """
    scheme = urls[0].scheme
    stated: dict[str, Any] = {}
    for item in urls:
        if item.tls:  # a URL without options removes none
            stated.update(item.tls if isinstance(item.tls, dict) else {"ssl": item.tls})
    switched = stated.pop("ssl", None)
    return replace(
        urls[0],
        path=agreed([item.path.strip("/") or None for item in urls], "database", scheme) or "",
        username=agreed([item.username for item in urls], "user", scheme) or username,
        password=agreed([item.password for item in urls], "password", scheme) or password,
        tls=stated or switched or tls,
        query={name: value for item in urls for name, value in item.query.items()},
    )


def agreed(values: Iterable[Any], what: str, scheme: str) -> Any:
    """Return the common value of the URLs that have one, or None.

    Raises ConfigurationError, without showing the values, if they differ.
    """
    stated = {value for value in values if value is not None}
    if len(stated) > 1:
        raise ConfigurationError(
            f"expected the {scheme}:// URLs of one broker to agree on the {what}, "
            f"got {len(stated)} different ones"
        )
    return stated.pop() if stated else None
