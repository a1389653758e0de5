"""Who may see the pages, who may act on them: names, roles, passwords and where they are written.

A password is hashed by scrypt, in a text of one word that a file or the environment may hold.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from ..errors import ConfigurationError
from ..printable import word

if TYPE_CHECKING:
    from collections.abc import Mapping

Role: TypeAlias = Literal["viewer", "operator"]
"""A viewer sees everything and changes nothing; an operator may use the actions there are."""

ROLES: tuple[Role, ...] = ("viewer", "operator")
_FIELDS = 3


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who was let in."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Account:
    """A user with a password, of which the hash is known."""

    user: User
    password_hash: str


def accounts(text: str, where: str) -> dict[str, Account]:
    """Return the accounts in *text*: ``name role hash``, one a line, or between semicolons.

    *where* it stands, for the ConfigurationError that says which entry is wrong.
    """
    found: dict[str, Account] = {}
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        entry = line.partition("#")[0].split()
        if not entry:
            continue
        if len(entry) != _FIELDS or entry[1] not in ROLES or ":" in entry[0]:
            raise ConfigurationError(
                f"entry {number} of {where}: expected NAME, {' or '.join(ROLES)}, and the hash "
                "that `reliq web --hash-password` prints, with spaces between them"
            )
        name, role, stored = entry
        if name in found:
            raise ConfigurationError(f"entry {number} of {where}: {name!r} is there twice")
        try:
            _parts(stored)
        except ConfigurationError as exc:
            raise ConfigurationError(f"entry {number} of {where}, user {name!r}: {exc}") from None
        found[name] = Account(User(name, cast("Role", role)), stored)
    if not found:
        raise ConfigurationError(f"{where} names no user")
    return found


def accounts_in(path: str | Path) -> Mapping[str, Account]:
    """Return the accounts in a file; raises ConfigurationError."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            about, text = os.fstat(file.fileno()), file.read()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"cannot read the users in {str(path)!r}: {exc}") from None
    # As ssh has it for keys: of a file of somebody else, its owner decides.
    if os.name == "posix" and about.st_uid == os.getuid() and about.st_mode & 0o077:
        raise ConfigurationError(
            f"others can read the users in {str(path)!r}: chmod 600 {word(str(path))}"
        )
    return accounts(text, str(path))


_N, _R, _P = 2**14, 8, 5  # OWASP's; 16 MB and a tenth of a second
_BYTES = 32
_MOST_MEMORY = 2**27


def hashed(password: str) -> str:
    """Return what is stored in the place of *password*; another text each time."""
    salt = os.urandom(16)
    return "$".join(
        ("scrypt", str(_N), str(_R), str(_P), _text(salt), _text(_key(password, salt, _N, _R, _P)))
    )


def fits(password: str, stored: str) -> bool:
    """Whether *stored* was made of *password*. Takes a tenth of a second of one core."""
    n, r, p, salt, key = _parts(stored)
    return hmac.compare_digest(key, _key(password, salt, n, r, p))


def _parts(stored: str) -> tuple[int, int, int, bytes, bytes]:
    """Return what is in *stored*; raises ConfigurationError where `hashed` has not made it."""
    try:
        name, *numbers, salt, key = stored.split("$")
        n, r, p = map(int, numbers)
        parts = n, r, p, _raw(salt), _raw(key)
    except ValueError:
        name, parts = "", (0, 0, 0, b"", b"")
    n, r, p, _, raw_key = parts
    costs = n >= _N and 256 * n * r <= _MOST_MEMORY and 0 < p <= _R * _P
    if name != "scrypt" or len(raw_key) != _BYTES or not costs:
        # Not repeated: it may be a password that somebody forgot to hash.
        raise ConfigurationError(
            "expected the hash of a password, as `reliq web --hash-password` prints it"
        )
    return parts


def _key(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    text = password.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(text, salt=salt, n=n, r=r, p=p, maxmem=_MOST_MEMORY, dklen=_BYTES)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw, b"-_").decode()


def _raw(text: str) -> bytes:
    return base64.b64decode(text, b"-_", validate=True)
