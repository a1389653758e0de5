"""Calls: each waits for its reply, over a connection that no other thread uses meanwhile.

The connections are kept in a pool, the most recently used one on top. A broken or interrupted
connection is dropped: a later reply would be taken for the reply to another command.
"""

from __future__ import annotations

from collections import deque
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from hiredis import ReplyError

from ..errors import again
from . import refusals
from .error_replies import class_of, translate_reply
from .stream import FAILURES, Command, Reply, Stream, failure, late, pack, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..errors import ReliqError
    from ..lua.scripts import Script
    from .connect import Broker

CHECK_AFTER_S = 0.02  # silence after which a connection is checked before use
_MOST_IDLE = 32
_PING: Sequence[tuple[Command, Script | None]] = ((("PING",), None),)


def as_text(command: Command, script: Script | None) -> Command:
    """Return the EVAL command that sends the text of *script*, runs the script and caches it."""
    return command if script is None else ("EVAL", script.text, *parts_of(command)[2:])


def needs_text(stream: Stream, text: str, address: Broker) -> bool:
    """Whether the error *text* refuses only the digest of a script."""
    if text.startswith("NOSCRIPT"):
        return True
    if not refusals.refuses_evalsha(text):
        return False
    refusals.note(address.identity, refusals.EVALSHA, translate_reply(text, address))
    stream.sends_texts = True
    return True


def dismissal(error: ReliqError) -> ReliqError | None:
    """Return the connection's error if *error* shows that the server does not serve, or None.

    The server may never become the master, and a connection for posts would use it forever.
    """
    if not class_of(error.reply).dismisses:
        return None
    later = again(error)
    later.reply = ""  # the outcome of other commands is unknown
    return later


class Calls:
    """The pool of connections to one server, and the exchanges over them."""

    def __init__(
        self,
        address: Broker,
        timeout_s: float,
        health_check_s: float,
        dial: Callable[[], Stream],
        lost: Callable[[ReliqError], None],
    ) -> None:
        """*dial* opens a connection; *lost* is called when the server is found to be lost."""
        self._address = address
        self._timeout_s = timeout_s
        self._health_check_s = health_check_s
        self._dial = dial
        self._lost = lost
        self._idle: deque[Stream] = deque()  # each operation is atomic and needs no lock
        self.broken = 0
        """The number of idle connections found closed: the server may have been replaced."""
        self.silent: Callable[[], None] = lambda: None
        """Called after each second in which a call has received nothing; may raise."""

    def add(self, stream: Stream) -> None:
        """Put *stream* into the pool, or close it if the pool is full."""
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(stream)
        else:
            stream.close()

    def take(self) -> Stream:
        """Return a connection for the caller's exclusive use. Raises BrokerUnavailable."""
        try:
            stream = self._idle.pop()
        except IndexError:
            return self._dial()
        old = stream.login is not None and stream.is_outdated()
        if (old or monotonic() - stream.used > CHECK_AFTER_S) and not self._serves(stream, old):
            stream.close()
            self.broken += 1
            return self.take()
        return stream

    def _serves(self, stream: Stream, old: bool) -> bool:
        """Whether an idle connection is open, and answers AUTH if *old*, or PING if long silent."""
        try:
            if stream.read():
                return False  # unexpected data: no command is pending
            if old or monotonic() - stream.used > self._health_check_s:
                stream.write(stream.renewal() if old else pack(_PING[0][0]))
                replies, _ = self._read(stream, _PING, self._timeout_s, inf)
                if old and stream.login is not None:
                    stream.login.report(replies[0])
        except FAILURES:
            return False
        return True

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def replies(
        self,
        commands: Sequence[tuple[Command, Script | None]],
        patience_s: float = 0.0,
        ends_at: float = inf,
    ) -> list[Reply]:
        """Write all *commands* at once and return their replies, error replies included.

        Raises BrokerUnavailable. *patience_s*: see :meth:`.commands.Commands.exchange`.
        *ends_at*: when the caller stops waiting; the server then does not count as lost.
        """
        return self.end(self.begin(commands), commands, patience_s, ends_at)

    def begin(self, commands: Sequence[tuple[Command, Script | None]]) -> Stream:
        """Write all *commands* and return the connection, from which :meth:`end` reads."""
        stream = self.take()
        try:
            if stream.sends_texts:
                commands = [(as_text(*item), None) for item in commands]
            data = bytearray()
            for command, _ in commands:
                data += pack(command)
            stream.write(data)
        except FAILURES as exc:
            raise self._failed(stream, exc, self._timeout_s) from exc
        except BaseException:
            stream.close()
            raise
        return stream

    def end(
        self,
        stream: Stream,
        commands: Sequence[tuple[Command, Script | None]],
        patience_s: float = 0.0,
        ends_at: float = inf,
    ) -> list[Reply]:
        """Return the replies to the commands of :meth:`begin`; see :meth:`replies`."""
        limit_s = self._timeout_s + patience_s
        try:
            replies, dismissed = self._read(stream, commands, limit_s, ends_at)
        except FAILURES as exc:
            if isinstance(exc, TimeoutError) and monotonic() >= ends_at:
                stream.close()
                raise late(self._address, limit_s) from exc
            raise self._failed(stream, exc, limit_s) from exc
        except BaseException:  # an interrupt: other connections stay open
            stream.close()
            raise
        if dismissed is None:
            self.add(stream)
        else:
            stream.close()
            self._lost(dismissed)
        return replies

    def _failed(self, stream: Stream, exc: BaseException, limit_s: float) -> ReliqError:
        stream.close()
        error = failure(exc, self._address, limit_s)
        self._lost(error)
        return again(error)

    def _read(
        self,
        stream: Stream,
        commands: Sequence[tuple[Command, Script | None]],
        limit_s: float,
        ends_at: float,
    ) -> tuple[list[Reply], ReliqError | None]:
        """Return the replies, and the connection's error if the server does not serve."""
        replies = stream.replies(len(commands), limit_s, self.silent, ends_at)
        dismissed: ReliqError | None = None
        resend: list[int] = []
        for place, reply in enumerate(replies):
            if type(reply) is ReplyError:
                text = str(reply)
                if commands[place][1] is not None and needs_text(stream, text, self._address):
                    resend.append(place)
                    continue
                error = replies[place] = translate_reply(text, self._address)
                dismissed = dismissed or dismissal(error)
        if resend:
            texts = [(as_text(*commands[place]), None) for place in resend]
            stream.write(b"".join([pack(command) for command, _ in texts]))
            resent, dismissed_later = self._read(stream, texts, limit_s, ends_at)
            for place, reply in zip(resend, resent, strict=True):
                replies[place] = reply
            dismissed = dismissed or dismissed_later
        return replies, dismissed
