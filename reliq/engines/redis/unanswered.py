"""Unanswered: what was asked over a connection and has no reply yet.

Replies come in the order of the commands. Owns that order, the clock of ``socket_timeout``, and
the replies that have come and were not handed out. Its conversation's lock guards it; nothing
waits here.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

import hiredis

from ...errors import again
from . import refusals
from .connect import translate_reply
from .stream import Command, Reply, Stream, pack

if TYPE_CHECKING:
    from ...errors import ReliqError
    from .connect import Broker
    from .scripts import Script

OnReply: TypeAlias = Callable[[Reply], None]

# What only a server says that is not, or not yet, the master. It may never be again, and
# whoever only posts over this connection would go on asking it for ever.
_DISMISSED = re.compile(r"\b(READONLY|LOADING|MASTERDOWN|UNBLOCKED)\b")


class Asked:
    """A command that was written, and what has become of it.

    One with a handler was posted, one without was called: a thread looks for its reply here.
    """

    __slots__ = (
        "answered",
        "begun",
        "command",
        "finished",
        "handler",
        "patience_s",
        "reply",
        "script",
    )

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
        """How much longer than socket_timeout it may take."""
        self.handler = handler
        self.reply: Reply = None
        self.answered = False
        self.begun = False
        """Whether the handler was called."""
        self.finished = False
        """Whether it has returned; without one, whether the reply is here."""

    def send_text(self) -> None:
        """Let it be sent with the script's text: EVAL runs it and caches it."""
        if self.script is not None:
            self.command = ("EVAL", self.script.text, *self.command[2:])
            self.script = None


def with_texts(asked: Sequence[Asked], stream: Stream) -> bytes | None:
    """Pack what is *asked* where a posted script is not known, with its text; it is, then.

    None where each is. Nobody may read the reply for long: what it is posted for, an ack above
    all, is not to wait for that where the server was restarted and has no script in its cache.
    """
    found = False
    for item in asked:
        script = item.script
        if script is None:
            continue
        if stream.sends_texts or (item.handler is not None and script.sha not in stream.scripts):
            stream.scripts.add(script.sha)
            item.send_text()
            found = True
    return b"".join([pack(item.command) for item in asked]) if found else None


class Unanswered:
    """The commands of one connection, oldest first, and the replies that have arrived."""

    def __init__(self, address: Broker, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._asked: deque[Asked] = deque()
        self._since = 0.0  # when the oldest began to wait
        self.arrived: deque[Asked] = deque()
        """What was posted and is answered: to be handed out, by one thread and without a lock."""

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._asked)

    @property
    def undelivered(self) -> bool:
        """Whether a handler is to be called; who calls them takes from it without the lock."""
        try:
            return not self.arrived[-1].begun
        except IndexError:
            return False

    def __contains__(self, asked: Asked) -> bool:
        """Whether *asked* was written, and has no reply yet."""
        return asked in self._asked

    def posted(self) -> list[Asked]:
        """Return what was posted and is not finished, in no order."""
        return [item for item in (*self._asked, *self.arrived) if item.handler is not None]

    # -- the clock

    @property
    def silent_s(self) -> float:
        """How long the oldest has been waiting without a word of the server."""
        return monotonic() - self._since if self._asked else 0.0

    def add(self, asked: Asked) -> None:
        """Note what was written."""
        if not self._asked:
            self._since = monotonic()
        self._asked.append(asked)

    def restart(self) -> None:
        """Begin to count anew: the server has taken something, or has answered."""
        self._since = monotonic()

    @property
    def limit_s(self) -> float:
        """How long the oldest may take."""
        return self._timeout_s + (self._asked[0].patience_s if self._asked else 0.0)

    @property
    def left_s(self) -> float:
        """How much of that is left."""
        return self._since + self.limit_s - monotonic()

    @property
    def overdue(self) -> bool:
        """Whether the oldest has waited too long."""
        return bool(self._asked) and self.left_s <= 0

    # -- replies

    def match(self, stream: Stream) -> ReliqError | None:
        """Find the commands of the replies that *stream* has read.

        Returns with what the server has dismissed us, who are at the wrong one.
        """
        self.restart()
        dismissed: ReliqError | None = None
        while (reply := stream.next_reply()) is not False:
            asked = self._asked[0]
            if isinstance(reply, hiredis.ReplyError):
                text = str(reply)
                if asked.script is not None and text.startswith("NOSCRIPT"):
                    self._ask_again(stream)
                    continue
                reply = translate_reply(text, self._address)
                if asked.script is not None and refusals.refuses_evalsha(text):
                    refusals.note(self._address.identity, refusals.EVALSHA, reply)
                    stream.sends_texts = True
                    self._ask_again(stream)
                    continue
                if _DISMISSED.search(text):
                    dismissed = again(reply)
                    dismissed.reply = ""  # of the others it is not known
            self._answer(asked, reply)
        return dismissed

    def _ask_again(self, stream: Stream) -> None:
        """Send the oldest again: not run, and not in the cache."""
        asked = self._asked[0]
        asked.send_text()
        stream.write(pack(asked.command))
        self._asked.rotate(-1)

    def give_up(self, error: ReliqError) -> None:
        """Let *error* be the reply to each."""
        while self._asked:
            self._answer(self._asked[0], error)

    def _answer(self, asked: Asked, reply: Reply) -> None:
        """Note the reply to the oldest. Where that is interrupted, it is answered once more."""
        arrived = self.arrived
        if not asked.answered:
            asked.reply = reply
            asked.answered = True
        if asked.handler is None:
            asked.finished = True
        elif not (asked.begun or (arrived and arrived[-1] is asked)):
            arrived.append(asked)
        self._asked.popleft()

    def call_handlers(self) -> None:
        """Call the handlers of what has arrived, each once, in order; raises what one raises."""
        arrived = self.arrived
        while self.undelivered:
            asked = arrived[0]
            if asked.begun:  # we are called by its handler
                asked = next(item for item in tuple(arrived) if not item.begun)
            try:
                asked.begun = True
                if asked.handler is not None:
                    asked.handler(asked.reply)
            finally:
                asked.finished = True
                arrived.remove(asked)
