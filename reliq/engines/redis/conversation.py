"""Conversation: what is said over a connection, by whichever threads, and who hears the replies.

Commands go out in order, and replies come in the same order. The lock is held for the state only,
not while anybody waits, for a reply or for room in the socket. One thread reads at a time, whoever
needs a reply first, and stores what others wait for; one thread at a time calls the handlers of
what was posted, in order and without the lock. The others wait until they are woken because
something has changed. So a server that does not answer holds up nobody but those who ask it.

Who calls, or waits for replies, goes on when the handlers of what was posted before have returned,
also where another thread calls them. But not within a handler, which waits for no other: so it may
use any connection, also one whose handlers use this one.

More than 300 lines, because all of it changes one state under one lock.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ...errors import BrokerTimeout, BrokerUnavailable, ReliqError, again
from ...forks import OwnLock, Part, register
from . import refusals
from .connect import translate
from .roles import Role, Turn, Waiters, in_turn
from .unanswered import Unanswered, with_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .connect import Broker
    from .stream import Stream
    from .unanswered import Asked

_FAILURES = (OSError, ValueError, EOFError)  # what a stream raises
# The threads that are in a handler, of whichever connection; a child has none of them.
_in_handler: set[int] = set()
register(Part("conversations", forget=_in_handler.clear))

# Who writes while another reads looks so often whether that one still does.
_LOOK_AGAIN_S = 0.1


class _Wait(NamedTuple):
    """What a thread waits for."""

    done: Callable[[], bool]
    reads: bool
    writes: bool
    ends_at: float


class Conversation:
    """What goes over the connections of one wire, one after the other, in one process."""

    lock = OwnLock(reentrant=True)
    """Guards its state. Nothing waits and nothing is called under it."""

    def __init__(self, address: Broker, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self.stream: Stream | None = None
        """The connection; None before the first, and where it has failed."""
        self._used = 0.0  # when something went over it last
        self._unanswered = Unanswered(address, timeout_s)
        self._reading, self._flushing, self._handing_out = Role(), Role(), Role()
        self._waiters = Waiters()

    def begin(self, stream: Stream) -> None:
        """Go on over *stream*, which was just dialled."""
        with self.lock:
            self._lose()
            self._used = monotonic()
            stream.sends_texts = refusals.lacks(self._address.identity, refusals.EVALSHA)
            self.stream = stream

    @property
    def waiting(self) -> bool:
        """Whether a command has no reply yet, or a reply was not handed out."""
        return bool(self._unanswered or self._unanswered.arrived)

    @property
    def read_by_another(self) -> bool:
        """Whether another thread waits for what comes, and takes it."""
        return self._reading.is_anothers()

    def has_taken(self, asked: Asked) -> bool:
        """Whether *asked* was noted as written: then it is answered, in any case."""
        with self.lock:
            return asked.answered or asked in self._unanswered

    @property
    def silent_s(self) -> float:
        """How long the oldest unanswered command has been waiting without a word."""
        return self._unanswered.silent_s

    def was_silent_for(self, silence_s: float) -> bool:
        """Whether nothing went over it for longer; it counts as used from then on."""
        with self.lock:
            silent = monotonic() - self._used > silence_s
            if silent:
                self._used = monotonic()
            return silent

    def check(self) -> None:
        """Raise BrokerTimeout if the oldest unanswered command waits too long.

        Not where something has come, which is left to who reads: we may have been suspended. Nor
        where a thread waits for it, which looks at the time itself.
        """
        if self.stream is not None and self._unanswered.overdue:
            self._go_on_now(reads=False)

    def end(self, error: ReliqError) -> None:
        """Hang up; *error* is the reply to all that has none. Returns when all have it."""
        with self.lock:
            self._fail(error)
        self.wait()

    def hang_up(self, error: ReliqError) -> None:
        """Do as :meth:`end` does, but wait for no handler that another thread has called."""
        with self.lock:
            self._fail(error)
        self._hand_out()

    def abandon(self) -> None:
        """Let go, in a child, of what is its parent's."""
        if self.stream is not None:
            self.stream.abandon()

    # -- writing

    def write(self, data: bytes, asked: Sequence[Asked], silence_s: float) -> bool:
        """Write *data*, to which *asked* expect the replies; wait until the socket has taken it.

        False, and nothing is written, where there is no connection, or none over which anything
        went for *silence_s*: its peer may have closed it. Raises BrokerUnavailable where it could
        not be written; where that fails later, it is the reply.
        """
        unanswered = self._unanswered
        error: ReliqError | None = None
        try:
            with self.lock:
                stream = self.stream
                if stream is None or not (unanswered or monotonic() - self._used <= silence_s):
                    return False
                try:
                    stream.write(with_texts(asked, stream) or data)
                    end = stream.written
                    for item in asked:
                        unanswered.add(item)
                    self._used = monotonic()
                except _FAILURES as exc:
                    error = self._fail_with(exc)
                except BaseException:  # half of it may be written, or noted
                    self._fail_interrupted()
                    raise
        except BaseException:
            self._tell_all()
            raise
        if error is not None:
            self._hand_out_and_raise(error)
        if stream.unsent:
            self._until(lambda: self.stream is not stream or stream.sent >= end, reads=False)
        return True

    # -- reading

    def receive(self) -> None:
        """Read what has come, without waiting, and hand it out; raises BrokerUnavailable.

        Leaves it to a thread that reads already.
        """
        self._go_on_now(judges=False)

    def _go_on_now(self, *, reads: bool = True, judges: bool = True) -> None:
        error = None
        try:
            with self.lock:
                stream = self.stream
                # Who waits for what we took would go on waiting; and looks at the time.
                if stream is not None and not self._reading.is_anothers():
                    error = self._go_on(stream, reads=reads, judges=judges)
                    self._waiters.wake()
        except BaseException:
            self._tell_all()
            raise
        self._hand_out()
        if error is not None:
            raise again(error)

    def wait_for(self, asked: Sequence[Asked], timeout_s: float = inf) -> None:
        """Wait until *asked* have their replies, if need be that the connection has failed.

        At most *timeout_s*, which is then also the end of the wait for the handlers of others.
        """
        last = asked[-1]
        done = lambda: last.finished and all(item.finished for item in asked)  # noqa: E731
        self._until(done, ends_at=inf if timeout_s == inf else monotonic() + timeout_s)
        if self._unanswered.arrived and timeout_s == inf:
            self._wait_for_handlers(list(self._unanswered.arrived))

    def wait(self, timeout_s: float = inf) -> None:
        """Wait for the replies to what was posted so far; raises BrokerUnavailable.

        At most *timeout_s*; the handlers of what has come take what they take.
        """
        if not self.waiting:
            return
        with self.lock:
            posted = self._unanswered.posted()
        error = self._until(
            lambda: all(item.answered for item in posted), ends_at=monotonic() + timeout_s
        )
        self._wait_for_handlers([item for item in posted if item.answered])
        if error is not None:
            raise again(error)

    def _wait_for_handlers(self, posted: Sequence[Asked]) -> None:
        # Whoever is in a handler may be waited for by the other that calls these.
        if threading.get_ident() not in _in_handler:
            done = lambda: all(item.finished for item in posted)  # noqa: E731
            self._until(done, reads=False, writes=False)

    # -- taking turns

    def _until(
        self,
        done: Callable[[], bool],
        *,
        reads: bool = True,
        writes: bool = True,
        ends_at: float = inf,
    ) -> ReliqError | None:
        """Do what it takes, or wait for others that do it, until *done*, which takes no time.

        Only for what reading or writing brings about: nothing else ends a wait for the socket.
        Returns with what the connection was found broken meanwhile; not later than *ends_at*.
        """
        found: list[ReliqError] = []
        wait = _Wait(done, reads, writes, ends_at)
        in_turn(partial(self._steps, wait, found), self._end)
        return found[0] if found else None

    def _steps(self, wait: _Wait, found: list[ReliqError], turn: Turn) -> None:
        while True:
            with self.lock:
                if turn.stream is not None and (error := self._end_wait(turn)) is not None:
                    found.append(error)
                do = self._next(turn, wait)
            if do is None:
                break
            do()

    def _next(self, turn: Turn, wait: _Wait) -> Callable[[], object] | None:
        """Return what is to be done next without the lock; None where the wait is over."""
        unanswered, stream = self._unanswered, self.stream
        if stream is None and unanswered:
            self._lose()
        if unanswered.undelivered and not self._handing_out.is_anothers():
            return self._hand_out
        ends_at = wait.ends_at
        longest_s = inf if ends_at == inf else ends_at - monotonic()
        if wait.done() or longest_s <= 0:
            return None
        if stream is not None:
            writes = wait.writes and stream.unsent and self._flushing.take(turn)
            # Who writes reads, too: the server may take no more before its replies are taken.
            reads = (wait.reads or writes) and bool(unanswered) and self._reading.take(turn)
            if reads or writes:
                turn.stream = stream
                stream.begin_wait(turn)
                left_s = unanswered.left_s if reads else min(unanswered.left_s, _LOOK_AGAIN_S)
                return partial(stream.wait, min(left_s, longest_s), reads=reads, writes=writes)
        acquire = self._waiters.add().lock.acquire
        return acquire if longest_s == inf else partial(acquire, timeout=longest_s)

    def _end_wait(self, turn: Turn) -> ReliqError | None:
        """Take what has come, and write more; return with what the connection is found broken."""
        stream, error = turn.stream, None
        if stream is not None and self.stream is stream:  # else another has found it broken
            # Another that waits for what we would take waits no longer when the time is up.
            reads = not self._reading.is_anothers() or self._unanswered.overdue
            error = self._go_on(stream, reads=reads, judges=reads)
        self._end(turn)
        return error

    def _end(self, turn: Turn) -> None:
        if turn.roles or turn.stream is not None:
            with self.lock:
                if turn.stream is not None:
                    turn.stream.end_wait(turn)
                    turn.stream = None
                self._waiters.wake()
                for role in tuple(turn.roles):
                    role.end(turn)

    # -- going on, under the lock

    def _go_on(
        self, stream: Stream, *, reads: bool = True, judges: bool = True
    ) -> ReliqError | None:
        """Take what has come and write more; where neither can be, it may be late.

        Returns with what the connection is found broken.
        """
        try:
            # Before the time is looked at: we may have been suspended. And before anything is
            # written: TLS may have to read first.
            if reads:
                self._take(stream)
            self._write_more(stream)
            late = judges and self._is_late(stream) and (reads or not stream.has_come())
        except _FAILURES as exc:
            return self._fail_with(exc)
        except BaseException:
            self._fail_interrupted()
            raise
        return self._fail_late() if late else None

    def _take(self, stream: Stream) -> None:
        if stream.read():
            self._used = monotonic()
            dismissed = self._unanswered.match(stream)
            if dismissed is not None:
                # Whoever waits here waits at the wrong server: nobody may notice before.
                self._fail(dismissed)

    def _write_more(self, stream: Stream) -> None:
        if stream.unsent and self.stream is stream and stream.flush():
            self._unanswered.restart()

    def _is_late(self, stream: Stream) -> bool:
        # A server may have answered what it has not taken all of.
        waits = self.stream is stream and (bool(self._unanswered) or stream.unsent)
        return waits and self._unanswered.left_s <= 0

    # -- handing out

    def _hand_out(self) -> None:
        """Call the handlers of what has arrived, unless another thread is at it."""
        if self._unanswered.undelivered:
            in_turn(self._call_handlers, self._end)

    def _call_handlers(self, turn: Turn) -> None:
        unanswered = self._unanswered
        with self.lock:
            mine = self._handing_out.take(turn)
        if not mine:
            return
        within = turn.thread in _in_handler
        try:
            while True:
                _in_handler.add(turn.thread)
                try:
                    unanswered.call_handlers()
                except ReliqError:
                    raise
                except BaseException:
                    # What was posted may not know of its reply, and must not wait for it.
                    with self.lock:
                        self._fail_interrupted()
                    while unanswered.undelivered:
                        with suppress(BaseException):  # the first is raised
                            unanswered.call_handlers()
                    raise
                with self.lock:
                    if not unanswered.undelivered:  # nobody leaves more to us
                        self._end(turn)
                        break
        finally:
            if not within:
                _in_handler.discard(turn.thread)

    def _hand_out_and_raise(self, error: ReliqError) -> None:
        """Raise *error* when others were told; not what they were given to keep."""
        self._hand_out()
        raise again(error)

    def _tell_all(self) -> None:
        """Make up for what an interrupt may have cut off."""
        with self.lock:
            self._waiters.wake()
        self._hand_out()

    # -- failing, under the lock

    def _fail_with(self, exc: Exception) -> ReliqError:
        """Give the connection up because of *exc*; return what that is for others."""
        if isinstance(exc, EOFError):
            error: ReliqError = BrokerUnavailable(f"{self._address} closed the connection")
        else:
            error = translate(exc, self._address, self._timeout_s)
        self._fail(error)
        return error

    def _fail_interrupted(self) -> None:
        """Give the connection up: later replies would be taken for those of the wrong command."""
        self._fail(BrokerUnavailable(f"{self._address}: a command was interrupted"))

    def _fail_late(self) -> ReliqError:
        error = BrokerTimeout(
            f"{self._address} did not answer within {self._unanswered.limit_s:g} s "
            "(socket_timeout); whether the last command was carried out is not known"
        )
        self._fail(error)
        return error

    def _fail(self, error: ReliqError) -> None:
        stream, self.stream = self.stream, None
        try:
            self._unanswered.give_up(error)
        finally:
            try:
                if stream is not None:
                    stream.close()
            finally:
                self._waiters.wake()

    def _lose(self) -> None:
        """Make up for a failure that was interrupted before all were told."""
        self._unanswered.give_up(BrokerUnavailable(f"{self._address}: the connection was lost"))
