"""URLs of Redis: the one reading of them, for whoever is given one.

Kombu reads the URLs of connections itself, and hands over the parts; :func:`address_of` makes
an address of either. No error shows what may be a part of a password, and none has an error
before it that does: ``urllib`` quotes what it cannot read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ...errors import ConfigurationError
from .. import redis as engine
from .connect import Address

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
"""Kombu's scheme -> ours for the same server."""

_ENCODED = "in a password, percent-encode what has a meaning in URLs (/ ? # [ ] @ : ; %)"
# What may stand in the query of a socket's, as in Kombu's redis+socket://.
_OF_SOCKET = ("virtual_host", "username", "password")
# What Kombu takes from the query for other transports, and ours do without.
_NO_MATTER = frozenset({"connect_timeout", "heartbeat", "insist", "login_method"})


@dataclass(frozen=True, slots=True)
class Said:
    """What one URL says: None where it says nothing. Its repr shows no password."""

    scheme: str
    host: str | None = None
    port: int | None = None
    path: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Any = field(default=None, repr=False)
    """Kombu's ``ssl``: what the query says of TLS."""
    query: dict[str, str] = field(default_factory=dict, repr=False)
    """What else it says."""


def read(url: str, schemes: Iterable[str]) -> Said:
    """Return what *url* says, unquoted; raises ConfigurationError, without showing a password."""
    parts = _split(url)
    if parts is None:
        raise ConfigurationError(
            f"expected a URL such as reliq://host:6379/0, got one that cannot be read; {_ENCODED}"
        )
    if parts.scheme not in schemes:
        expected = ", ".join(f"{name}://" for name in schemes)
        # Between semicolons, or with an @, it may be a piece of a password.
        shown = "://" in url and "@" not in url
        got = parts.scheme if shown else "another, or none"
        if ours := our_scheme(parts.scheme):  # a known word shows nothing
            expected, got = f"{ours}://", f"{parts.scheme}://"
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
    return Said(
        parts.scheme,
        unquote(parts.hostname or "") or None,
        port or None,
        unquote(parts.path),
        unquote(parts.username or "") or None,
        unquote(parts.password or "") or None,
        tls or switched,
        {name: value for name, value in query.items() if name not in _NO_MATTER},
    )


def our_scheme(scheme: str) -> str | None:
    """Return our scheme for the server that *scheme*, Kombu's or made of both, is meant for."""
    return KOMBUS.get(scheme.removeprefix("reliq+"))


def scheme_of(url: str) -> str:
    """Return the scheme of *url*, "" where it has none."""
    parts = _split(url)
    return "" if parts is None else parts.scheme


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:  # a bracket, or what is another character when it is normalised
        return None


def _port(parts: SplitResult) -> int | None:
    """Return the port, 0 where there is none; None where it is no number."""
    try:
        return parts.port or 0
    except ValueError:
        return None


def database(text: str | None, *, show: bool = False) -> int:
    """Return the number of the database in a URL; raises ConfigurationError.

    show: say what is there instead. Without it nothing is shown: it may be the rest of a
    password with a slash.
    """
    number = str(text or "").strip("/") or "0"
    if number.isascii() and number.isdigit():
        return int(number)
    got = repr(number) if show else f"something else; {_ENCODED}"
    raise ConfigurationError(f"expected the database in the URL to be a number, got: {got}")


def address_of(said: Said, *, default_port: int = PORT, show: bool = False) -> Address:
    """Return the address that a URL says, whoever has read it; raises ConfigurationError.

    TLS is what ``reliqs://`` means, and what any option of it (``?ssl_...``, Kombu's
    ``ssl``) asks for. show: as for :func:`database`.
    """
    query, of_socket = dict(said.query), said.scheme == "reliq-unix"
    stated = {name: query.pop(name, None) if of_socket else None for name in _OF_SOCKET}
    if query:
        known = ", ".join(_OF_SOCKET) if of_socket else "what begins with ssl_"
        raise ConfigurationError(
            f"unknown in the query of a {said.scheme}:// URL: "
            f"{', '.join(sorted(query))}: only {known} can stand there"
        )
    if of_socket:
        return Address(
            path=said.path,
            db=database(stated["virtual_host"], show=show),
            username=said.username or stated["username"],
            password=said.password or stated["password"],
        )
    if said.host in {"socket", "unix"} and said.path.count("/") > 1:
        raise ConfigurationError(
            "expected a URL of reliq-unix:///path, got another scheme before it"
        )
    secure = said.scheme == "reliqs"
    return Address(
        host=said.host or "localhost",
        port=said.port or default_port,
        db=database(said.path, show=show),
        username=said.username,
        password=said.password,
        tls=engine.tls_options(said.tls, always=secure) if secure or said.tls else None,
    )


def together(said: Sequence[Said], *, username: str | None, password: str | None, tls: Any) -> Said:
    """Return what the URLs of one broker say of it together: the host is that of the first.

    *username*, *password* and *tls* (Kombu's ``ssl``) hold where none says anything. Raises
    ConfigurationError, without showing a password, where they do not agree.
    """
    scheme = said[0].scheme
    stated: dict[str, Any] = {}
    for item in said:
        if item.tls:  # one that says nothing takes nothing back
            stated.update(item.tls if isinstance(item.tls, dict) else {"ssl": item.tls})
    switched = stated.pop("ssl", None)
    return replace(
        said[0],
        path=agreed([item.path.strip("/") or None for item in said], "database", scheme) or "",
        username=agreed([item.username for item in said], "user", scheme) or username,
        password=agreed([item.password for item in said], "password", scheme) or password,
        tls=stated or switched or tls,
        query={name: value for item in said for name, value in item.query.items()},
    )


def agreed(values: Iterable[str | None], what: str, scheme: str) -> str | None:
    """Return what the URLs of one broker that say something agree on; says it without showing it.

    Raises ConfigurationError where they do not.
    """
    said = {value for value in values if value is not None}
    if len(said) > 1:
        raise ConfigurationError(
            f"expected the {scheme}:// URLs of one broker to agree on the {what}, "
            f"got {len(said)} different ones"
        )
    return said.pop() if said else None
