"""Asked: a command over the connection of a node, posted, and its reply where a thread waits."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ..stream import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..posts import OnReply
    from ..scripts import Script
    from ..stream import Command, Reply
    from ..wire import Wire


class Asked:
    """A command that was written, and its reply; one with a handler was posted."""

    def __init__(
        self,
        command: Command,
        script: Script | None,
        patience_s: float,
        handler: OnReply | None = None,
    ) -> None:
        self.command = command
        self.script = script
        self.patience_s = patience_s
        self.handler = handler
        self.reply: Reply = None
        self.taken = False
        """Whether it was written, or may be: then it is answered."""
        self.finished = False

    def send(self, wire: Wire, data: bytes | None = None) -> None:
        """Write it now; see :meth:`Wire.post`."""
        self.taken = True
        try:
            packed = data or pack(self.command)
            wire.post_packed(packed, self.command, self._arrived, self.script, self.patience_s)
        except BaseException:
            self.taken = wire.alive
            raise

    def _arrived(self, reply: Reply) -> None:
        self.reply = reply
        try:
            if self.handler is not None:
                self.handler(reply)
        finally:
            self.finished = True


def send(wire: Wire, asked: Sequence[Asked]) -> None:
    """Write all that is *asked*."""
    for item in asked:
        item.send(wire)


def wait_for(wire: Wire, asked: Sequence[Asked], timeout_s: float = inf) -> None:
    """Wait until what was sent is answered, also by an error; at most *timeout_s*."""
    ends_at = inf if timeout_s == inf else monotonic() + timeout_s
    wire.posts.wait_for(lambda: all(item.finished for item in asked), ends_at)
