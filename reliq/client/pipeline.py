"""Pipeline: the pending commands of one connection, and the replies that have arrived.

Commands go out in order, and replies arrive in the same order. Owns the connection, the time since
the last progress, and the outcome of the commands if the connection fails. Knows nothing of
the threads that write, wait and call handlers (:mod:`.posts`). The lock guards state only and is
never held during a wait.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from hiredis import ReplyError

from ..errors import BrokerUnavailable, ReliqError, again
from .calls import CHECK_AFTER_S, as_text, dismissal, needs_text
from .error_replies import translate_reply
from .poll import readable
from .stream import FAILURES, SILENCE_S, Command, Reply, Stream, failure, late, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..lua.scripts import Script
    from .connect import Broker

OnReply: TypeAlias = "Callable[[Reply], None]"

POLL_AGAIN_S = 0.005
"""The polling interval of a thread that waits for another thread."""


@dataclass(slots=True, eq=False)
class Post:
    """A posted command and its reply."""

    command: Command
    script: Script | None
    patience_s: float
    """The time that the command may take, in addition to socket_timeout."""
    handler: OnReply
    reply: Reply = None
    begun: bool = False
    """Whether the handler was called."""
    number: int = 0
    """Its place in the order of posts."""

    def with_text(self) -> bytes:
        """Replace the script's digest with its text; return the packed command."""
        if self.script is not None:
            self.command = as_text(self.command, self.script)
            self.script = None
        return pack(self.command)


class Pipeline:
    """The posts of one wire in one process, with and without a reply."""

    def __init__(
        self, address: Broker, timeout_s: float, lost: Callable[[ReliqError], None]
    ) -> None:
        """*lost* is called when the connection is found broken."""
        self._address = address
        self.timeout_s = timeout_s
        self._lost = lost
        # Reentrant for signal handlers. A child has other posts, hence another lock.
        self.lock = threading.RLock()
        """Guards the state. No thread waits or calls a handler while it holds the lock. A nested
        call within a write or read closes the connection: it could split a command or a reply."""
        self.stream: Stream | None = None
        """The connection; None before the first one and after a failure."""
        self.pending: deque[Post] = deque()
        """The commands without a reply."""
        self.arrived: deque[Post] = deque()
        """The replied commands whose handlers have not returned; the driver removes them."""
        self.since = 0.0
        """When the oldest pending command was written, or the last progress was made."""
        self.number = 0
        """The number of the last post."""
        self.failure: ReliqError | None = None
        """The reason why the last connection failed."""
        self._polls = 0
        # The connection that is being written or read.
        self._in_use: Stream | None = None

    def begin(self, stream: Stream) -> None:
        """Continue over *stream*."""
        with self.lock:
            self._end_pending()
            if self.stream is not None:  # a nested call was faster
                stream.close()
                return
            self.failure = None
            self.stream = stream

    @property
    def waiting(self) -> bool:
        """Whether a command has no reply yet, or its handler has not returned."""
        return bool(self.pending or self.arrived)

    # -- writing

    def write(self, data: bytes, post: Post, now: float) -> tuple[Stream | None, int]:
        """Write *data*, the packed command of *post*, as far as the socket takes it now.

        Returns the connection, and how many bytes it must have taken for *data* to be out. Returns
        None without writing if there is no connection. Raises BrokerUnavailable if writing fails.
        """
        with self.lock:
            stream = self.stream
            if stream is not None and not self.pending and now - stream.used > CHECK_AFTER_S:
                self.take()
                stream = self.stream
            if stream is None or self._is_nested(stream):
                return None, 0
            self._in_use = stream
            try:
                script = post.script
                if script is not None and (stream.sends_texts or script.sha not in stream.scripts):
                    # The reply may stay unread for long. An ack must not wait for that when a
                    # restarted server has an empty script cache.
                    stream.scripts.add(script.sha)
                    data = post.with_text()
                stream.write(data)
                if self.stream is not stream:
                    raise EOFError  # noqa: TRY301 - a nested call has closed it
                if not self.pending:
                    self.since = now
                self.number = post.number = self.number + 1
                self.pending.append(post)
                stream.used = now
            except FAILURES as exc:
                error = failure(exc, self._address, self.timeout_s)
                raise again(self._fail(error, stream)) from exc
            except BaseException:  # it may be partly written or recorded
                self.fail_interrupted(stream)
                raise
            finally:
                self._in_use = None
            return stream, stream.written

    # -- reading

    def poll(self, longest_s: float) -> None:
        """Wait up to *longest_s* until the connection can be read or written; do so.

        For one thread at a time. Without a connection, the failure is the reply to each command.
        """
        with self.lock:
            stream = self.stream
            if stream is None:
                self._end_pending()
                return
            self._polls += 1
        try:
            # Another thread may write the rest, and a nested call may read the reply: that ends
            # no poll.
            pause_s = POLL_AGAIN_S if stream.unsent else SILENCE_S
            stream.wait(min(self._left_s, longest_s, pause_s))
        finally:
            with self.lock:
                self._polls -= 1
                if self.stream is not stream:
                    stream.close()  # it has failed meanwhile
        self.take()

    def take(self, *, reads: bool = True) -> None:
        """Read what has arrived and write more, without waiting; without *reads*, only write.

        Without any progress, a reply may be overdue. Replies are read before the time is checked:
        the process may have been suspended.
        """
        with self.lock:
            stream = self.stream
            if stream is None or not (reads or stream.unsent) or self._is_nested(stream):
                return
            self._in_use = stream
            try:
                first, moved = self.pending[0] if self.pending else None, False
                if reads and stream.read():
                    dismissed = self._match(stream)
                    moved = not self.pending or self.pending[0] is not first or stream.progressed()
                    if dismissed is not None:
                        # The server does not serve, and a waiting thread may not notice it.
                        self._fail(dismissed, stream)
                        return
                if stream.unsent:
                    moved = stream.flush() or moved
                if moved:
                    self.since = stream.used = monotonic()
                elif (
                    (self.pending or stream.unsent)
                    and self._left_s <= 0
                    and (reads or not readable((stream.fileno(),), 0.0))
                ):
                    self._fail(late(self._address, self._limit_s), stream)
            except FAILURES as exc:
                self._fail(failure(exc, self._address, self._limit_s), stream)
            except BaseException:
                self.fail_interrupted(stream)
                raise
            finally:
                self._in_use = None

    def _is_nested(self, stream: Stream) -> bool:
        """Close *stream*, and return True, if this thread writes or reads it already.

        A signal handler or destructor interrupts it, perhaps within a command or a reply.
        """
        if self._in_use is stream:
            self.fail_interrupted(stream)
            return True
        return False

    def _match(self, stream: Stream) -> ReliqError | None:
        """Match replies to commands; return the error of a server that does not serve."""
        dismissed: ReliqError | None = None
        while (reply := stream.next_reply()) is not False and self.stream is stream:
            if not self.pending:
                raise ValueError(f"{reply!r} is a reply to no command")
            post = self.pending[0]
            if type(reply) is ReplyError:
                text = str(reply)
                if post.script is not None and needs_text(stream, text, self._address):
                    stream.write(post.with_text())
                    if self.stream is stream:
                        self.pending.rotate(-1)
                    continue
                reply = translate_reply(text, self._address)
                dismissed = dismissed or dismissal(reply)
            self._arrive(post, reply)
        return dismissed

    def _arrive(self, post: Post, reply: Reply) -> None:
        """Store the reply to the oldest command; after an interrupt, store it only once.

        Python runs no other code of this thread between a check and the call after it.
        """
        if not self.pending or self.pending[0] is not post:
            return  # a nested call has ended it
        if not (post.begun or (self.arrived and self.arrived[-1] is post)):
            post.reply = reply
            self.arrived.append(post)
        if self.pending and self.pending[0] is post:
            self.pending.popleft()

    # -- failing

    @property
    def _limit_s(self) -> float:
        return self.timeout_s + (self.pending[0].patience_s if self.pending else 0.0)

    @property
    def _left_s(self) -> float:
        return self.since + self._limit_s - monotonic()

    def fail_if_late(self) -> ReliqError | None:
        """Close the connection if the oldest command is overdue; return the error.

        Does nothing if data has arrived: the process may have been suspended.
        """
        with self.lock:
            stream = self.stream
            if stream is None or not self.pending or self._left_s > 0:
                return None
            if readable((stream.fileno(),), 0.0):
                return None
            return self._fail(late(self._address, self._limit_s))

    def fail_interrupted(self, stream: Stream | None = None) -> None:
        """Close the connection: later replies would be matched to the wrong commands."""
        with self.lock:
            self._fail(BrokerUnavailable(f"{self._address}: a command was interrupted"), stream)

    def hang_up(self, error: ReliqError) -> bool:
        """Close the connection; *error* is the reply to all commands. False if there is none."""
        with self.lock:
            if self.stream is None:
                return False
            self._fail(error)
            return True

    def _fail(self, error: ReliqError, of: Stream | None = None) -> ReliqError:
        if of is not None and of is not self.stream:
            return error  # closed by a nested call, which may have opened another one
        stream, self.stream, self.failure = self.stream, None, error
        try:
            self._end_pending()
        finally:
            if stream is not None:
                if self._polls:
                    stream.interrupt()
                else:
                    stream.close()
                self._lost(error)
        return error

    def _end_pending(self) -> None:
        """Make the failure the reply to each pending command, also after an interrupt."""
        lost = self.failure or BrokerUnavailable(f"{self._address}: the connection was lost")
        while self.stream is None and self.pending:
            self._arrive(self.pending[0], lost)
