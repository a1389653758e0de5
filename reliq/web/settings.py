"""The settings of the page: brokers, users and permissions. Parsed once, then frozen."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ..errors import ConfigurationError
from ..printable import word

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Short timeouts, because a user waits for each page.
_PATIENCE = {"socket_timeout": 5.0, "socket_connect_timeout": 2.0}
_LONGEST_S = 60.0
_LOOPBACK = frozenset({"127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of :func:`reliq.web.app`, which describes each; raises ConfigurationError."""

    urls: tuple[str, ...]
    transport_options: Mapping[str, Any] = field(default_factory=dict)
    allow_actions: bool = False
    users: Mapping[str, Account] = field(default_factory=dict)
    user_header: str = ""
    proxies: frozenset[str] = _LOOPBACK
    operators: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    redact: tuple[str, ...] = ()
    root_path: str = ""
    interval_s: float = 2.0
    action_log: Path | None = None

    def __post_init__(self) -> None:
        """Check the combinations of settings, and normalise."""
        if not self.urls:
            raise ConfigurationError("expected the URL of at least one broker, got none")
        if self.users and self.user_header:
            raise ConfigurationError(
                "expected either users with passwords or user_header, got both"
            )
        if (self.operators or self.proxies != _LOOPBACK) and not self.user_header:
            raise ConfigurationError("expected user_header with operators or proxies, got none")
        networks(self.proxies)
        if self.user_header and not self.proxies:
            raise ConfigurationError("expected the address of at least one trusted proxy, got none")
        for key in self.redact:
            if not key.strip() or "," in key:
                raise ConfigurationError(
                    f"expected redact to have one key per item, such as '*token*', got: {key!r}"
                )
        if not (isfinite(self.interval_s) and 0 < self.interval_s <= _LONGEST_S):
            raise ConfigurationError(
                f"expected interval_s to be above 0 and up to {_LONGEST_S:g} seconds, "
                f"got: {self.interval_s!r}"
            )
        path = "/" + self.root_path.strip("/") if self.root_path.strip("/") else ""
        if any(ord(char) <= ord(" ") or char in "?#\\" for char in path):
            raise ConfigurationError(f"expected root_path to be a path, got: {self.root_path!r}")
        object.__setattr__(self, "root_path", path)
        object.__setattr__(self, "transport_options", {**_PATIENCE, **self.transport_options})


Network: TypeAlias = "IPv4Network | IPv6Network"


def networks(addresses: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks of *addresses* such as ``10.0.0.7``, ``10.0.0.0/24`` or ``fd00::1``.

    Raises ConfigurationError for a host name, which never equals the address of a peer.
    """
    networks: list[Network] = []
    for text in addresses:
        try:
            networks.append(ip_network(text.strip("[]")))
        except ValueError as exc:  # noqa: PERF203 - few
            raise ConfigurationError(
                f"expected a proxy's address, or a network such as 10.0.0.0/24, got: {text!r} "
                f"({exc})"
            ) from None
    return tuple(networks)


# -- users: passwords are hashed with scrypt; a hash is one word of text

Role: TypeAlias = Literal["viewer", "operator"]
"""Viewers see all pages; operators can also use actions, if these are allowed."""

ROLES: tuple[Role, ...] = ("viewer", "operator")
_FIELDS = 3


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Account:
    """A user with the hash of a password."""

    user: User
    password_hash: str


def accounts(text: str, where: str) -> dict[str, Account]:
    """Return the accounts in *text*: ``name role hash``, one per line or between semicolons.

    Raises ConfigurationError, which names *where* the text is and the wrong entry.
    """
    accounts: dict[str, Account] = {}
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        entry = line.partition("#")[0].split()
        if not entry:
            continue
        if len(entry) != _FIELDS or entry[1] not in ROLES or ":" in entry[0]:
            raise ConfigurationError(
                f"entry {number} of {where}: expected NAME, {' or '.join(ROLES)}, and a hash "
                "from `reliq web --hash-password`, separated by spaces"
            )
        name, role, stored = entry
        if name in accounts:
            raise ConfigurationError(f"entry {number} of {where}: duplicate user {name!r}")
        try:
            _parts(stored)
        except ConfigurationError as exc:
            raise ConfigurationError(f"entry {number} of {where}, user {name!r}: {exc}") from None
        accounts[name] = Account(User(name, cast("Role", role)), stored)
    if not accounts:
        raise ConfigurationError(f"{where} contains no user")
    return accounts


def accounts_in(path: str | Path) -> Mapping[str, Account]:
    """Return the accounts in a file; raises ConfigurationError."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            about, text = os.fstat(file.fileno()), file.read()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"cannot read the users in {str(path)!r}: {exc}") from None
    # The rule of ssh for keys. The file of another owner is not checked.
    if os.name == "posix" and about.st_uid == os.getuid() and about.st_mode & 0o077:
        raise ConfigurationError(
            f"others can read the users in {str(path)!r}: run chmod 600 {word(str(path))}"
        )
    return accounts(text, str(path))


_N, _R, _P = 2**14, 8, 5  # recommended by OWASP; 16 MB and a tenth of a second
_BYTES = 32
_MOST_MEMORY = 2**27


def hashed(password: str) -> str:
    """Return a hash of *password* with a random salt, to be stored."""
    salt = os.urandom(16)
    return "$".join(
        ("scrypt", str(_N), str(_R), str(_P), _text(salt), _text(_key(password, salt, _N, _R, _P)))
    )


def fits(password: str, stored: str) -> bool:
    """Whether *stored* is a hash of *password*. Takes a tenth of a second of one core."""
    n, r, p, salt, key = _parts(stored)
    return hmac.compare_digest(key, _key(password, salt, n, r, p))


def _parts(stored: str) -> tuple[int, int, int, bytes, bytes]:
    try:
        name, *numbers, salt, key = stored.split("$")
        n, r, p = map(int, numbers)
        parts = n, r, p, _raw(salt), _raw(key)
    except ValueError:
        name, parts = "", (0, 0, 0, b"", b"")
    n, r, p, _, raw_key = parts
    costs = n >= _N and 256 * n * r <= _MOST_MEMORY and 0 < p <= _R * _P
    if name != "scrypt" or len(raw_key) != _BYTES or not costs:
        # The error does not repeat the text, which may be a password in plain text.
        raise ConfigurationError("expected the hash of a password from `reliq web --hash-password`")
    return parts


def _key(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    text = password.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(text, salt=salt, n=n, r=r, p=p, maxmem=_MOST_MEMORY, dklen=_BYTES)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw, b"-_").decode()


def _raw(text: str) -> bytes:
    return base64.b64decode(text, b"-_", validate=True)
