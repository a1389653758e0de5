"""Optional commands that a broker refuses: remembered, and logged once, by each process.

reliq needs EVAL, TIME and the commands of its data. A managed service, or an ACL, may refuse any
other: "NOPERM ...", "ERR unknown command ...", in whichever words. It is not sent again then.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from ...errors import BrokerRefused, again

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...errors import ReliqError

logger = logging.getLogger("reliq")

EVALSHA, UNBLOCK = ("EVALSHA",), ("CLIENT", "UNBLOCK")
_LEASES = (
    "killed consumers are noticed when their leases end (visibility_timeout), not after "
    "orphan_grace"
)
COSTS = {
    "CLIENT ID": _LEASES,
    "CLIENT LIST": _LEASES,
    "CLIENT SETNAME": "CLIENT LIST shows no names of connections",
    "CLIENT UNBLOCK": "a wait is ended by a token in a list, two commands more",
    "EVALSHA": "scripts are sent as text, some kB for each call",
    "INFO": "workers do not notice a restart of the server, and the doctor sees little of it",
}
"""What each costs where it is refused."""
_REFUSED = re.compile(
    r"NOPERM|unknown (sub)?command|un(supported|available)|not (\w+ )?available", re.IGNORECASE
)
# (what identifies broker and user, command) that was refused to this process; and what was said.
_known: set[tuple[object, str]] = set()


def name_of(command: Sequence[Any]) -> str:
    """Return the name of *command*, with the subcommand that counts."""
    two = command[0] in {"CLIENT", "CONFIG"}
    return " ".join(map(str, command[:2])) if two else str(command[0])


def is_refusal(text: str) -> bool:
    """Whether an error says that there is no such command, or not for this user."""
    return _REFUSED.search(text) is not None


def refuses_evalsha(text: str) -> bool:
    """Whether it was EVALSHA itself that was refused, and not a command in the script."""
    return is_refusal(text) and "evalsha" in text.lower()


def lacks(identity: object, command: Sequence[Any]) -> bool:
    """Whether the broker of this *identity* has refused *command* to us before."""
    return (identity, name_of(command)) in _known


def unless_noted(identity: object, command: Sequence[Any], error: ReliqError) -> ReliqError | None:
    """Return *error*; of an optional command note that it is refused, or raise the error."""
    if name_of(command) not in COSTS:
        return error
    if not isinstance(error, BrokerRefused):
        raise again(error)
    note(identity, command, error)
    return None


def note(identity: object, command: Sequence[Any], error: ReliqError) -> None:
    """Remember that the broker of this *identity* refuses *command*; log it, and what it costs."""
    name = name_of(command)
    _known.add((identity, name))
    said = (str(error), name)  # a password that changes is another identity
    if said not in _known:
        _known.add(said)
        logger.warning("%s; without %s %s; said once", error, name, COSTS[name])
