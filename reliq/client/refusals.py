"""Optional commands that a broker refuses: remembered, and logged once, in each process.

reliq needs EVAL, TIME and the commands for its data. A managed service or an ACL may refuse any
other command ("NOPERM ...", "ERR unknown command ..."), which reliq then no longer sends.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..errors import again, logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..errors import ReliqError

EVALSHA, UNBLOCK = ("EVALSHA",), ("CLIENT", "UNBLOCK")
_LEASES = (
    "dead consumers are detected when their leases end (visibility_timeout), not after orphan_grace"
)
COSTS = {
    "CLIENT ID": _LEASES,
    "CLIENT LIST": _LEASES,
    "CLIENT SETNAME": "CLIENT LIST shows no names of connections",
    "CLIENT UNBLOCK": "a token in a list ends a wait, which takes two more commands",
    "EVALSHA": "scripts are sent as text, some kB for each call",
    "INFO": "workers do not detect a restart of the server, and the doctor checks little of it",
}
"""The effect of each refusal."""
_REFUSED = re.compile(
    r"NOPERM|unknown (sub)?command|un(supported|available)|not (\w+ )?available", re.IGNORECASE
)
# (identity of broker and user, command) of refusals in this process; also (error, command) logged.
_known: set[tuple[object, str]] = set()


def name_of(command: Sequence[Any]) -> str:
    """Return the name of *command*, with its subcommand if that matters."""
    two = command[0] in {"CLIENT", "CONFIG"}
    return " ".join(map(str, command[:2])) if two else str(command[0])


def is_refusal(text: str) -> bool:
    """Whether an error means that the command is unknown or not allowed for this user."""
    return _REFUSED.search(text) is not None


def refuses_evalsha(text: str) -> bool:
    """Whether EVALSHA itself was refused, not a command in the script."""
    return is_refusal(text) and "evalsha" in text.lower()


def lacks(identity: object, command: Sequence[Any]) -> bool:
    """Whether the broker of this *identity* has refused *command* to this process before."""
    return (identity, name_of(command)) in _known


def unless_noted(identity: object, command: Sequence[Any], error: ReliqError) -> ReliqError | None:
    """Return *error*, or record the refusal of an optional command; raise its other errors."""
    if name_of(command) not in COSTS:
        return error
    if error.passes:
        raise again(error)
    note(identity, command, error)
    return None


def note(identity: object, command: Sequence[Any], error: ReliqError) -> None:
    """Record that the broker of this *identity* refuses *command*; log it with its effect."""
    name = name_of(command)
    _known.add((identity, name))
    refusal = (str(error), name)  # a changed password is another identity
    if refusal not in _known:
        _known.add(refusal)
        logger.warning("%s; without %s, %s; logged once", error, name, COSTS[name])
