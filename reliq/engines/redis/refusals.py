"""Optional commands that a broker refuses: remembered, and logged once, by each process.

reliq needs EVAL, TIME and the commands of its data. A managed service, or an ACL, may refuse any
other: "NOPERM ...", "ERR unknown command ...", in whichever words. It is not sent again then.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...errors import ReliqError

logger = logging.getLogger("reliq")

EVALSHA, UNBLOCK = "EVALSHA", "CLIENT UNBLOCK"
_LEASES = (
    "killed consumers are noticed when their leases end (visibility_timeout), not after "
    "orphan_grace"
)
COSTS = {
    "CLIENT ID": _LEASES,
    "CLIENT LIST": _LEASES,
    "CLIENT SETNAME": "CLIENT LIST shows no names of connections",
    UNBLOCK: "a wait is ended by a token in a list, two commands more",
    EVALSHA: "scripts are sent as text, some kB for each call",
    "INFO": "workers do not notice a restart of the server, and the doctor sees little of it",
}
"""What each costs where it is refused."""
_REFUSED = re.compile(
    r"NOPERM|unknown (sub)?command|un(supported|available)|not (\w+ )?available", re.IGNORECASE
)
_NO_EVALSHA = re.compile(
    r"(NOPERM|ERR (unknown|unsupported|command)).*evalsha", re.IGNORECASE | re.DOTALL
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
    return _NO_EVALSHA.match(text) is not None


def lacks(identity: object, name: str) -> bool:
    """Whether the broker of this *identity* has refused the command *name* to us before."""
    return (identity, name) in _known


def note(identity: object, name: str, error: ReliqError) -> None:
    """Remember that the broker of this *identity* refuses *name*; log it, and what it costs."""
    _known.add((identity, name))
    said = (str(error), name)  # a password that changes is another identity
    if said not in _known:
        _known.add(said)
        logger.warning("%s; without %s %s; said once", error, name, COSTS[name])
