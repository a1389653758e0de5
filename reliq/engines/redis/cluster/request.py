"""Request: a command that is on its way to whichever node has its slot."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from .slots import slot_of

if TYPE_CHECKING:
    from ..posts import OnReply
    from ..scripts import Script
    from ..stream import Command, Reply
    from ..wire import Wire
    from .asked import Asked

_numbers = count()
# Commands of no key: the anchor answers them, the node of what belongs to no queue.
_KEYLESS = frozenset(
    {"PING", "INFO", "TIME", "CLIENT", "SCRIPT", "CONFIG", "ACL", "SCAN", "ROLE", "CLUSTER"}
)


class Request:
    """One command, and what has become of it."""

    __slots__ = (
        "answered_by",
        "begun",
        "command",
        "finished",
        "given_up",
        "moves",
        "number",
        "on_reply",
        "parked_at",
        "patience_s",
        "reply",
        "script",
        "sent",
        "slot",
    )

    def __init__(
        self,
        slot: int,
        command: Command,
        script: Script | None,
        patience_s: float,
        on_reply: OnReply | None = None,
    ) -> None:
        self.slot = slot
        self.command = command
        self.script = script
        self.patience_s = patience_s
        self.on_reply = on_reply
        """Who is told of the reply; None where a thread waits for it."""
        self.number = next(_numbers)
        """Its place among those of its slot."""
        self.parked_at: float | None = None
        """When it began to wait for its slot to be served; None where it never did."""
        self.moves = 0
        """How often a node has named another one."""
        self.begun: Wire | None = None
        """Over which wire it is under way, or about to be: its slot is bound to that."""
        self.sent: tuple[Wire, Asked] | None = None
        """Over which wire it went last."""
        self.answered_by: Wire | None = None
        """Over which wire its reply came."""
        self.reply: Reply = None
        self.finished = False
        self.given_up = False
        """Whether nobody waits for it any more: it is not sent again."""


def next_number() -> int:
    """Return a number greater than that of any request there is."""
    return next(_numbers)


def key_of(command: Command) -> str | bytes | None:
    """Return the first key of *command*; None where it has none."""
    name = command[0]
    if name in {"EVALSHA", "EVAL"}:
        return command[3] if int(command[2]) else None
    return None if name in _KEYLESS else command[1]


def slot_for(command: Command, anchor: int) -> int:
    """Return the slot of *command*; *anchor* where it has no key."""
    key = key_of(command)
    return anchor if key is None else slot_of(key)
