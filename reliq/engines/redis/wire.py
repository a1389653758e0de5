"""Wire: one socket to one Redis, commands out in order, replies in the same order.

A command can be *called* (its reply is waited for) or *posted* (it is written at
once, its reply read whenever someone reads). Owns the order of
replies, the clock of ``socket_timeout`` and what a fork does to them; knows
nothing of queues. Thread-safe: one lock, held while a call waits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

import hiredis

from ...errors import BrokerTimeout, BrokerUnavailable, ReliqError, again
from ...forks import OwnLock, here
from ...store.protocol import ignore_result
from .connect import Broker, translate, translate_reply
from .stream import Command, Reply, Stream, pack

if TYPE_CHECKING:
    from ...options import Options
    from .scripts import Script

OnReply: TypeAlias = Callable[[Reply], None]

_LOOK_AFTER_S = 0.02  # silence after which a socket is looked at for a closed peer
# What only a server says that is not, or not yet, the master. It may never be again, and
# whoever only posts over this connection would go on asking it for ever.
_DISMISSED = re.compile(r"\b(READONLY|LOADING|MASTERDOWN|UNBLOCKED)\b")


class Wire:
    """A connection that dials when it is first used, and again after it failed.

    Whoever had a command under way when it failed gets a BrokerUnavailable; the
    next command dials. In a forked child it starts anew, without the parent's socket.
    """

    _lock = OwnLock(reentrant=True)

    def __init__(self, address: Broker, options: Options, name: str) -> None:
        self.address = address
        self.options = options
        self.name = name
        self.client_id = 0
        self.dials = 0
        self.connected_at = 0.0
        self._process = here()
        self._stream: Stream | None = None
        self._pending: deque[tuple[OnReply, Script | None, Command]] = deque()
        self._since = 0.0  # when the oldest unanswered command began to wait
        self._patience_s = 0.0  # how much longer than socket_timeout it may take
        self._used = 0.0
        self._closed = False
        self._reconnect_disabled = False

    # -- state

    @property
    def alive(self) -> bool:
        """Whether there is a socket of this process that has not failed."""
        return self._stream is not None and self._process == here()

    @property
    def waiting(self) -> bool:
        """Whether a posted command has no reply yet."""
        return bool(self._pending)

    def fileno(self) -> int:
        """Return the descriptor to watch for replies; dials if need be."""
        self.connect()
        stream = self._stream
        if stream is None:
            raise self._closed_meanwhile()
        return stream.fileno()

    def disable_reconnect(self) -> None:
        """Never dial again: an event loop watches this very descriptor."""
        self._reconnect_disabled = True

    def connect(self) -> None:
        """Dial unless connected; raises BrokerUnavailable."""
        self._leave_parent()
        with self._lock:
            if self._stream is None:
                self._dial()

    def close(self) -> None:
        """Close for good; commands under way, and later ones, get a BrokerUnavailable."""
        self._leave_parent()
        with self._lock:
            self._closed = True
            self._fail(BrokerUnavailable(f"{self.address}: the connection was closed"))

    def check(self) -> None:
        """Raise BrokerTimeout if the oldest unanswered command waits too long."""
        if self._pending and self.alive:
            limit = self.options.socket_timeout + self._patience_s
            if monotonic() - self._since > limit:
                self._too_late(limit)

    # -- commands

    def post(
        self,
        command: Command,
        on_reply: OnReply = ignore_result,
        script: Script | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Write *command* now; *on_reply* gets its reply or a ReliqError, later.

        Raises BrokerUnavailable when it could not be written; *on_reply* is then
        not called by this call, but may have been with the same error.
        """
        self.post_packed(pack(command), command, on_reply, script, patience_s)

    def post_packed(
        self,
        data: bytes,
        command: Command,
        on_reply: OnReply = ignore_result,
        script: Script | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Write *data*, which is *command* packed; otherwise as :meth:`post`."""
        self._leave_parent()
        with self._lock:
            self._ready()
            if not self._pending:
                self._since = monotonic()
            self._patience_s = patience_s
            with self._all_or_nothing():
                self._pending.append((on_reply, script, command))
                self._write(data, at_once=True)

    def call(self, command: Command, script: Script | None = None) -> Reply:
        """Write *command*, wait for its reply and return it; raises ReliqError."""
        return self.exchange([(command, script)])[0]

    def exchange(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Write all *commands* at once and return their replies: one round trip.

        Not atomic. Raises the first error among the replies, after all have come.
        *patience_s* is what the commands themselves may take, beyond socket_timeout.
        """
        ordered = self.replies(commands, patience_s)
        for reply in ordered:
            if isinstance(reply, ReliqError):
                raise again(reply)
        return ordered

    def replies(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Do as :meth:`exchange` does; what a command is refused with is its reply."""
        # Each reply to its own command: one that meets an empty script cache is sent
        # again, behind the others.
        replies: dict[int, Reply] = {}
        self._leave_parent()
        with self._lock:
            self._ready()
            self._patience_s = patience_s
            data = b"".join([pack(command) for command, _ in commands])
            with self._all_or_nothing():
                for place, (command, script) in enumerate(commands):
                    self._pending.append((partial(replies.__setitem__, place), script, command))
                self._since = monotonic()
                self._write(data)
                while len(replies) < len(commands):
                    self._read()
        return [replies[place] for place in range(len(commands))]

    def execute(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Reply:
        """Run *script* and return its reply; raises ReliqError. Atomic on the server."""
        return self.call(("EVALSHA", script.sha, len(keys), *keys, *args), script)

    def post_script(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Any],
        on_reply: OnReply = ignore_result,
    ) -> None:
        """Post *script*; see :meth:`post`."""
        self.post(("EVALSHA", script.sha, len(keys), *keys, *args), on_reply, script)

    # -- replies

    def receive(self, timeout_s: float | None = 0.0) -> None:
        """Read what has come, or wait up to *timeout_s* for something; dispatch it.

        Without waiting where that is 0, nor for a thread that waits for a reply: it reads
        what comes, and the background loop, which looks after many connections, must not
        be blocked with it. Raises BrokerUnavailable when the connection is found broken.
        """
        self._leave_parent()
        lock = self._lock
        if not lock.acquire(blocking=timeout_s != 0.0):
            return
        try:
            if self._stream is not None:
                self._read_some(timeout_s)
        finally:
            lock.release()

    def wait_for_replies(self) -> None:
        """Wait until every posted command has its reply; raises BrokerUnavailable."""
        self._leave_parent()
        with self._lock, self._all_or_nothing():
            while self._pending:
                # What has come is read before the time is looked at: we may have been
                # suspended. And they have waited for a while: not the whole timeout again.
                if not self._read_some(0.0) and self._pending:
                    self._read_some(min(self._remaining(), self.options.socket_timeout))

    # -- inside, under the lock

    def _leave_parent(self) -> None:
        if self._process != here():
            with self._lock:
                if self._process != here():
                    self._forget_parent()

    def _forget_parent(self) -> None:
        self._pending = deque()
        if self._stream is not None:
            self._stream.abandon()
        self._stream = None
        self._process = here()

    def _ready(self) -> None:
        """Make sure there is a socket, and that its peer did not close it long ago."""
        if self._stream is None:
            self._dial()
        elif not self._pending and (silence := monotonic() - self._used) > _LOOK_AFTER_S:
            with suppress(BrokerUnavailable):
                self._read_some(0.0)
                if silence > self.options.health_check_interval:
                    self._used = monotonic()
                    self.call(("PING",))
            if not self.alive:  # nothing was under way: dialling again is safe
                self._dial()

    def _dial(self) -> None:
        if self._closed or self._reconnect_disabled:
            raise BrokerUnavailable(f"{self.address}: this connection was closed")
        began = monotonic()  # an address that is looked up may be out of date by the end
        connection = self.address.connect(self.options, self.name)
        self._stream = Stream(connection, self.options.socket_timeout)
        self._used = monotonic()
        self.dials += 1
        self.connected_at = began
        self.client_id = self.call(("CLIENT", "ID"))

    def _closed_meanwhile(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self.address}: the connection was closed")

    def _write(self, data: bytes, *, at_once: bool = False) -> None:
        stream = self._stream
        if stream is None:
            raise self._closed_meanwhile()
        try:
            if at_once:
                stream.send(data)
            else:
                stream.write(data)
        except (OSError, ValueError) as exc:
            raise self._failed(self._translated(exc)) from exc
        self._used = monotonic()

    def _remaining(self) -> float:
        limit = self.options.socket_timeout + self._patience_s
        remaining = self._since + limit - monotonic()
        if remaining <= 0:
            self._too_late(limit)
        return remaining

    def _too_late(self, limit: float) -> None:
        raise self._failed(
            BrokerTimeout(
                f"{self.address} did not answer within {limit:g} s (socket_timeout); "
                "whether the last command was carried out is not known"
            )
        )

    def _read(self) -> None:
        # The whole timeout first: it is the same number each time, and setting
        # another one is a system call.
        if not self._read_some(self.options.socket_timeout) and self._stream is not None:
            self._read_some(min(self._remaining(), self.options.socket_timeout))
            self._remaining()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Give the connection up if something else interrupts a command half way.

        A task's time limit, gevent.Timeout or Ctrl-C may come between noting a
        command and reading its reply: every later reply would be taken for the
        wrong command.
        """
        try:
            yield
        except ReliqError:
            raise
        except BaseException:
            self._fail(BrokerUnavailable(f"{self.address}: a command was interrupted"))
            raise

    def _read_some(self, timeout_s: float | None) -> bool:
        stream = self._stream
        if stream is None:
            raise self._closed_meanwhile()
        try:
            got = stream.read(timeout_s)
        except EOFError:
            raise self._failed(BrokerUnavailable(f"{self.address} closed the connection")) from None
        except OSError as exc:
            raise self._failed(self._translated(exc)) from exc
        if got:
            self._dispatch(stream)
        return got

    def _dispatch(self, stream: Stream) -> None:
        pending = self._pending
        self._used = self._since = monotonic()
        dismissed: ReliqError | None = None
        while (reply := stream.next_reply()) is not False:
            on_reply, script, command = pending.popleft()
            if isinstance(reply, hiredis.ReplyError):
                text = str(reply)
                if script is not None and text.startswith("NOSCRIPT"):
                    # Not run, and not in the cache: EVAL runs it and caches it.
                    again = ("EVAL", script.text, *command[2:])
                    pending.append((on_reply, None, again))
                    self._write(pack(again))
                    continue
                reply = translate_reply(text, self.address)
                if _DISMISSED.search(text):
                    dismissed = reply
            on_reply(reply)
        if dismissed is not None:
            # Whoever waits here waits at the wrong server: nobody may notice before.
            self._fail(dismissed)

    def _translated(self, exc: BaseException) -> ReliqError:
        return translate(exc, self.address, self.options.socket_timeout)

    def _failed(self, error: ReliqError) -> ReliqError:
        """Give the connection up; return what to raise: not what others were given to keep."""
        self._fail(error)
        return again(error)

    def _fail(self, error: ReliqError) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        pending, self._pending = self._pending, deque()
        for on_reply, _, _ in pending:
            on_reply(error)
