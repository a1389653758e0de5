"""Request: one command to a slot of a cluster, and its fate."""

from __future__ import annotations

from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..posts import OnReply
    from ..scripts import Script
    from ..stream import Command, Reply
    from ..wire import Wire

_numbers = count()
# Commands of no key: the anchor answers them, the node of what belongs to no queue.
_KEYLESS = frozenset(
    {"PING", "INFO", "TIME", "CLIENT", "SCRIPT", "CONFIG", "ACL", "SCAN", "ROLE", "CLUSTER"}
)


class Request:
    """A command that is called, or posted: with the handler of its reply."""

    __slots__ = (
        "advice",
        "answered_by",
        "began",
        "command",
        "due",
        "finished",
        "lost",
        "moves",
        "number",
        "on_reply",
        "patience_s",
        "pause_s",
        "reply",
        "script",
        "slot",
        "way",
        "why",
    )

    def __init__(
        self,
        slot: int,
        command: Command,
        script: Script | None,
        patience_s: float = 0.0,
        on_reply: OnReply | None = None,
    ) -> None:
        self.slot = slot
        self.command = command
        self.script = script
        self.patience_s = patience_s
        self.on_reply = on_reply
        self.number = next(_numbers)
        self.began = monotonic()
        self.moves = 0
        """How often a node has named another one."""
        self.why = self.advice = self.way = ""
        """Why its slot was not served, what to do about that, and where the slot goes."""
        self.lost = False
        """Whether that stays so until somebody does something."""
        self.pause_s = 0.0
        """How long to wait before it is sent again."""
        self.due: float | None = None
        """When a post is sent again; None while it is under way."""
        self.answered_by: Wire | None = None
        """The connections over which its reply came."""
        self.reply: Reply = None
        self.finished = False

    @property
    def told(self) -> str:
        """Why its slot is not served, and what to do about that, for an error."""
        why = f"{self.why}; {self.way}" if self.way else self.why
        why = (why or "no reason is known").removesuffix(".")
        return f"{why}. What to do: {self.advice}" if self.advice else why

    def finish(self, reply: Reply, wire: Wire | None = None) -> None:
        """Note the reply that came over *wire*."""
        self.reply, self.answered_by = reply, wire
        self.finished = True


def next_number() -> int:
    """Return a number greater than that of any request there is."""
    return next(_numbers)


def key_of(command: Command) -> str | bytes | None:
    """Return the first key of *command*; None where it has none."""
    name = command[0]
    if name in {"EVALSHA", "EVAL"}:
        return command[3] if int(command[2]) else None
    return None if name in _KEYLESS else command[1]
