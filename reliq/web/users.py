"""Who may see the pages, who may act on them: names, roles and where they are written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from ..errors import ConfigurationError
from ..printable import word
from .passwords import require_hash

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
            require_hash(stored)
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
