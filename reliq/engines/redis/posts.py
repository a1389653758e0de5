"""Posts: commands that are written at once, and whose replies are read whenever somebody reads.

One connection, one queue. Commands go out in order, and replies come in the same order. The lock
is held for the state only, never for a wait. One thread at a time drives: it waits for replies,
and calls their handlers in order and without the lock. Other threads that wait look again every
few milliseconds; those that only read leave it to the driver. In a handler no thread waits for
another one: so a handler may use any connection, also one whose handlers use this one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from hiredis import ReplyError

from ...errors import BrokerUnavailable, ReliqError, again
from ...forks import Part, register
from ..poll import readable
from .calls import as_text, dismissal, needs_text
from .connect import translate_reply
from .stream import FAILURES, Command, Reply, Stream, failure, late, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from .connect import Broker
    from .scripts import Script

OnReply: TypeAlias = "Callable[[Reply], None]"

_LOOK_AFTER_S = 0.02  # silence after which a connection is looked at for a closed peer
# A thread that waits for what another one may do looks so often.
_LOOK_AGAIN_S = 0.005
# The threads that are in a handler, of any connection; a child has none of them.
_in_handler: set[int] = set()
register(Part("posts", forget=_in_handler.clear))


class Post:
    """A command that was posted, and its reply."""

    __slots__ = ("begun", "command", "handler", "number", "patience_s", "reply", "script")

    def __init__(
        self, command: Command, script: Script | None, patience_s: float, handler: OnReply
    ) -> None:
        self.command = command
        self.script = script
        self.patience_s = patience_s
        """How much longer than socket_timeout it may take."""
        self.handler = handler
        self.reply: Reply = None
        self.begun = False
        """Whether the handler was called."""
        self.number = 0
        """Its place in the order of posts."""

    def with_text(self) -> bytes:
        """Have it sent with its script's text; return that packed."""
        if self.script is not None:
            self.command = as_text(self.command, self.script)
            self.script = None
        return pack(self.command)


class Posts:
    """The commands that were posted over the connections of one wire, in one process."""

    def __init__(
        self, address: Broker, timeout_s: float, lost: Callable[[ReliqError], None]
    ) -> None:
        """*lost* is called when the connection was found broken."""
        self._address = address
        self._timeout_s = timeout_s
        self._lost = lost
        # Reentrant for the handlers of signals. A child has other posts, hence another lock.
        self._lock = threading.RLock()
        """Guards the state. Nothing waits and nothing is called under it."""
        self.stream: Stream | None = None
        """The connection; None before the first, and where it has failed."""
        self._asked: deque[Post] = deque()
        self._arrived: deque[Post] = deque()
        self._since = 0.0  # when the oldest began to wait, or something has moved
        self.number = 0
        """The number of the last post."""
        self._driver = 0
        self._polls = False
        self._failure: ReliqError | None = None

    def begin(self, stream: Stream) -> None:
        """Go on over *stream*."""
        with self._lock:
            self._end_asked()
            self._failure = None
            self.stream = stream

    @property
    def waiting(self) -> bool:
        """Whether a command has no reply yet, or its handler has not returned."""
        return bool(self._asked or self._arrived)

    @property
    def read_by_another(self) -> bool:
        """Whether another thread waits for what comes, and takes it."""
        return self._driver not in {0, threading.get_ident()}

    @property
    def silent_s(self) -> float:
        """How long the oldest unanswered command has been waiting without a word."""
        return monotonic() - self._since if self._asked else 0.0

    # -- writing

    def post(self, data: bytes, post: Post) -> bool:
        """Write *data*, to which *post* is the command; wait until the socket has taken it.

        False, and nothing is written, where there is no connection. Raises BrokerTimeout where an
        earlier reply is overdue (:meth:`check`), BrokerUnavailable where it could not be written;
        where that fails later, the error is its reply.
        """
        error: ReliqError | None = None
        now = monotonic()
        if self._asked and now - self._since >= self._timeout_s:
            self.check()
        try:
            with self._lock:
                stream = self.stream
                if stream is not None and not self._asked and now - stream.used > _LOOK_AFTER_S:
                    self._take(stream)
                    stream = self.stream
                if stream is not None:
                    error = self._write(stream, data, post, now)
                    end = stream.written
        except BaseException:
            self._drive(self._hand_out)
            raise
        if stream is None:
            if self._arrived:
                self._drive(self._hand_out)
            return False
        if error is not None:
            self._drive(self._hand_out)
            raise again(error)
        if stream.unsent:
            self._wait(
                lambda: self.stream is not stream or stream.written - len(stream.unsent) >= end
            )
        return True

    def _write(self, stream: Stream, data: bytes, post: Post, now: float) -> ReliqError | None:
        """Write it, under the lock; return why the connection failed."""
        try:
            script = post.script
            if script is not None and (stream.sends_texts or script.sha not in stream.scripts):
                # Nobody may read the reply for long: an ack is not to wait for that where the
                # server was restarted and has an empty script cache.
                stream.scripts.add(script.sha)
                data = post.with_text()
            stream.write(data)
            if not self._asked:
                self._since = now
            self.number = post.number = self.number + 1
            self._asked.append(post)
            stream.used = now
        except FAILURES as exc:
            return self._fail(failure(exc, self._address, self._timeout_s))
        except BaseException:  # half of it may be written, or noted
            self._fail_interrupted()
            raise
        return None

    # -- reading

    def receive(self) -> None:
        """Read what has come, without waiting, and call its handlers; raises BrokerUnavailable.

        Leaves it to a thread that drives already.
        """
        stream = self.stream
        if stream is not None or self._arrived:
            self._drive(self._receive)
            if stream is not None and self.stream is not stream and self._failure is not None:
                raise again(self._failure)

    def _receive(self) -> None:
        with self._lock:
            if self.stream is not None:
                self._take(self.stream)
        self._hand_out()

    def check(self) -> None:
        """Raise BrokerTimeout if the oldest unanswered command waits too long.

        Not where something has come, which is left to the thread that reads: the process may have
        been suspended. Nor where a thread drives, which looks at the time itself.
        """
        if (
            self._asked
            and monotonic() - self._since >= self._timeout_s
            and self._left_s <= 0
            and not self._driver
        ):
            error: ReliqError | None = None
            with self._lock:
                stream = self.stream
                if stream is not None and not readable((stream.fileno(),), 0.0):
                    error = self._fail(late(self._address, self._limit_s))
            if error is not None:
                self._drive(self._hand_out)
                raise again(error)

    def wait(self, timeout_s: float = inf, number: int | None = None) -> None:
        """Wait for the replies to what was posted so far, and for their handlers.

        At most *timeout_s*; the handlers of what has come take their time. Raises
        BrokerUnavailable where the connection fails meanwhile. *number*: only for those up to it.
        """
        if not self.waiting:
            return
        stream = self.stream
        ends_at = inf if timeout_s == inf else monotonic() + timeout_s
        self._wait(partial(self.are_over, number or self.number), ends_at, for_all=True)
        if stream is not None and self.stream is not stream and self._failure is not None:
            raise again(self._failure)

    def are_over(self, number: int) -> bool:
        """Whether the handlers of all posts up to *number* have returned.

        Except those in which this thread is: they would wait for themselves.
        """
        if not (self._asked or self._arrived):
            return True
        mine = self._driver == threading.get_ident()
        # One that was sent again is behind others.
        return all(
            post.number > number or (post.begun and mine) for post in (*self._asked, *self._arrived)
        )

    def wait_for(self, got: Callable[[], bool], ends_at: float = inf) -> None:
        """Wait until the handler of something that was posted has made *got* true."""
        self._wait(got, ends_at)

    def hang_up(self, error: ReliqError) -> None:
        """Give the connection up; *error* is the reply to all that has none."""
        with self._lock:
            if self.stream is None:
                return
            self._fail(error)
        self._drive(self._hand_out)

    # -- one thread drives

    def _drive(self, do: Callable[[], object]) -> bool:
        """Do it as the one thread that drives; False where another one does.

        The end of the turn stands twice: the first may be interrupted itself.
        """
        me = threading.get_ident()  # looked up late: gevent counts greenlets
        if self._driver == me:  # in a handler, or a signal's
            do()
            return True
        try:
            try:
                with self._lock:
                    if not self._driver:
                        self._driver = me
                if self._driver != me:
                    return False
                do()
            finally:
                if self._driver == me:
                    self._driver = 0
        finally:
            if self._driver == me:
                self._driver = 0
        if self._undelivered:  # another thread has left it to us meanwhile
            self._drive(self._hand_out)
        return True

    def _wait(
        self, done: Callable[[], bool], ends_at: float = inf, *, for_all: bool = False
    ) -> None:
        """Drive, or wait while another thread does, until *done*; not later than *ends_at*.

        for_all: not in a handler, while another thread drives.
        """
        while not done():
            left_s = inf if ends_at == inf else ends_at - monotonic()
            if left_s <= 0:
                return
            if self._drive(partial(self._go_on, done, left_s)):
                if self.stream is None and not self._asked and not self._undelivered:
                    return
                continue
            if for_all and threading.get_ident() in _in_handler:
                return
            time.sleep(min(_LOOK_AGAIN_S, left_s))
            with self._lock:
                if self.stream is not None and self.stream.unsent:
                    self._take(self.stream, reads=False)  # the driver may be in a handler

    def _go_on(self, done: Callable[[], bool], longest_s: float) -> None:
        """Call the handlers of what has arrived, else wait for more."""
        self._hand_out()
        if done():
            return
        with self._lock:
            stream = self.stream
            self._polls = stream is not None
            if stream is None:
                self._end_asked()
        try:
            if stream is not None:
                # Another thread may write the rest, which ends no poll.
                pause_s = _LOOK_AGAIN_S if stream.unsent else longest_s
                stream.wait(min(self._left_s, longest_s, pause_s))
        finally:
            with self._lock:
                self._polls = False
                if stream is not None and self.stream is not stream:
                    stream.close()  # it has failed meanwhile
        with self._lock:
            if stream is not None and self.stream is stream:
                self._take(stream)
        self._hand_out()

    def _take(self, stream: Stream, *, reads: bool = True) -> ReliqError | None:
        """Read what has come and write more, under the lock; return why the connection failed.

        Where neither can be, a reply may be late. Replies are read before the time is looked at:
        the process may have been suspended.
        """
        try:
            if moved := reads and stream.read():
                dismissed = self._match(stream)
                if dismissed is not None:
                    # Whoever waits here waits at the wrong server: nobody may notice before.
                    return self._fail(dismissed)
            if stream.unsent:
                moved = stream.flush() or moved
            if moved:
                self._since = stream.used = monotonic()
            elif (
                (self._asked or stream.unsent)
                and self._left_s <= 0
                and (reads or not readable((stream.fileno(),), 0.0))
            ):
                return self._fail(late(self._address, self._limit_s))
        except FAILURES as exc:
            return self._fail(failure(exc, self._address, self._limit_s))
        except BaseException:
            self._fail_interrupted()
            raise
        return None

    def _match(self, stream: Stream) -> ReliqError | None:
        """Find the commands of the replies; return the error of a server that does not serve."""
        dismissed: ReliqError | None = None
        while (reply := stream.next_reply()) is not False:
            if not self._asked:
                raise ValueError(f"{reply!r} is a reply to no command")
            post = self._asked[0]
            if type(reply) is ReplyError:
                text = str(reply)
                if post.script is not None and needs_text(stream, text, self._address):
                    stream.write(post.with_text())
                    self._asked.rotate(-1)
                    continue
                reply = translate_reply(text, self._address)
                dismissed = dismissed or dismissal(reply)
            self._arrive(post, reply)
        return dismissed

    def _arrive(self, post: Post, reply: Reply) -> None:
        """Note the reply to the oldest. Where that was interrupted, it is noted once."""
        if not (post.begun or (self._arrived and self._arrived[-1] is post)):
            post.reply = reply
            self._arrived.append(post)
        self._asked.popleft()

    @property
    def _undelivered(self) -> bool:
        """Whether a handler is to be called; the driver takes from these without the lock."""
        try:
            return not self._arrived[-1].begun
        except IndexError:
            return False

    def _hand_out(self) -> None:
        """Call the handlers of what has arrived, each once, in order; raises what one raises."""
        if not self._undelivered:
            return
        me = threading.get_ident()
        within = me in _in_handler
        try:
            _in_handler.add(me)
            while self._arrived:
                post = self._arrived[0]
                if post.begun:  # its handler is what has called us
                    post = next((item for item in self._arrived.copy() if not item.begun), post)
                    if post.begun:
                        break
                try:
                    post.begun = True
                    post.handler(post.reply)
                finally:
                    self._arrived.remove(post)
        except ReliqError:
            raise
        except BaseException:
            # What was posted may not know of its reply, and must not wait for it.
            with self._lock:
                self._fail_interrupted()
            while self._undelivered:
                with suppress(BaseException):  # the first is raised
                    self._hand_out()
            raise
        finally:
            if not within:
                _in_handler.discard(me)

    @property
    def _limit_s(self) -> float:
        return self._timeout_s + (self._asked[0].patience_s if self._asked else 0.0)

    @property
    def _left_s(self) -> float:
        return self._since + self._limit_s - monotonic()

    # -- failing, under the lock

    def _fail_interrupted(self) -> None:
        """Give the connection up: later replies would be taken for those of the wrong command."""
        self._fail(BrokerUnavailable(f"{self._address}: a command was interrupted"))

    def _fail(self, error: ReliqError) -> ReliqError:
        stream, self.stream, self._failure = self.stream, None, error
        try:
            self._end_asked()
        finally:
            if stream is not None:
                if self._polls:
                    stream.interrupt()
                else:
                    stream.close()
                self._lost(error)
        return error

    def _end_asked(self) -> None:
        """Let the failure be the reply to each; also where that was interrupted before."""
        while self._asked:
            lost = BrokerUnavailable(f"{self._address}: the connection was lost")
            self._arrive(self._asked[0], self._failure or lost)
