"""Wire: one socket to one Redis, commands out in order, replies in the same order.

A command can be *called* (its reply is waited for) or *posted* (it is written at
once, its reply read whenever someone reads). Owns when a connection is made, and what a fork
does to it; knows nothing of queues. Thread-safe: see :mod:`.conversation`.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...errors import BrokerUnavailable, ReliqError, again
from ...forks import OwnLock, here
from ...store.protocol import ignore_result
from . import formats
from .connect import FAILURES, ask_all, hang_up, translate
from .conversation import Conversation
from .roles import Role, Turn, Waiters, in_turn
from .stream import Command, Reply, Stream, pack
from .unanswered import Asked, OnReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...options import Options
    from .connect import Broker
    from .scripts import Script

_LOOK_AFTER_S = 0.02  # silence after which a socket is looked at for a closed peer


class Wire:
    """A connection that dials when it is first used, and again after it failed.

    Whoever had a command under way when it failed gets a BrokerUnavailable; the
    next command dials. In a forked child it starts anew, without the parent's socket.
    """

    _lock = OwnLock(reentrant=True)
    """Guards who dials, and whether anybody may. Nobody waits under it."""

    def __init__(self, address: Broker, options: Options, name: str) -> None:
        self.address = address
        self.options = options
        self.name = name
        self.client_id = 0
        self.dials = 0
        self.connected_at = 0.0
        self._closed = False
        self._reconnect_disabled = False
        self._begin()

    def _begin(self) -> None:
        process = here()
        self._conversation = Conversation(self.address, self.options.socket_timeout)
        self._dialling = Role()
        self._waiters = Waiters()
        self._process = process  # last: another thread of the child looks at it

    # -- state

    @property
    def alive(self) -> bool:
        """Whether there is a socket of this process that has not failed."""
        return self._conversation.stream is not None and self._process == here()

    @property
    def waiting(self) -> bool:
        """Whether a posted command has no reply yet."""
        return self._conversation.waiting

    @property
    def read_by_another(self) -> bool:
        """Whether another thread waits for what comes, and takes it."""
        return self._conversation.read_by_another

    def fileno(self) -> int:
        """Return the descriptor to watch for replies; dials if need be."""
        self.connect()
        stream = self._conversation.stream
        if stream is None:
            raise BrokerUnavailable(f"{self.address}: the connection was closed")
        return stream.fileno()

    def descriptors(self) -> dict[int, object]:
        """Return the descriptor to watch for replies; dials if need be."""
        return {self.fileno(): self}

    def disable_reconnect(self) -> None:
        """Never dial again: an event loop watches this very descriptor."""
        self._reconnect_disabled = True

    def close(self) -> None:
        """Close for good; commands under way, and later ones, get a BrokerUnavailable."""
        self._leave_parent()
        with self._lock:
            self._closed = True
        self._conversation.end(BrokerUnavailable(f"{self.address}: the connection was closed"))

    @property
    def silent_s(self) -> float:
        """How long the oldest unanswered command has been waiting without a word."""
        return self._conversation.silent_s if self._process == here() else 0.0

    def hang_up(self, error: ReliqError) -> None:
        """Give the connection up; *error* is the reply to all that has none."""
        if self._process == here():
            self._conversation.hang_up(error)

    def check(self) -> None:
        """Raise BrokerTimeout if the oldest unanswered command waits too long."""
        if self._process == here():
            self._conversation.check()

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
        not called.
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
        self.send((Asked(command, script, patience_s, on_reply),), data)

    def send(self, asked: Sequence[Asked], data: bytes | None = None) -> None:
        """Write all that is *asked* at once, or *data*, which is that packed; see :meth:`post`."""
        self._leave_parent()
        self._write(data or b"".join([pack(item.command) for item in asked]), asked)

    def has_taken(self, asked: Asked) -> bool:
        """Whether what was sent is answered, or will be: also where sending it was interrupted."""
        return self._conversation.has_taken(asked)

    def wait_for(self, asked: Sequence[Asked], timeout_s: float = inf) -> None:
        """Wait until what was sent is answered, also by an error; at most *timeout_s*."""
        self._leave_parent()
        self._conversation.wait_for(asked, timeout_s)

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
        asked = [Asked(command, script, patience_s) for command, script in commands]
        if not asked:
            return []
        self.send(asked)
        self.wait_for(asked)
        replies = [item.reply for item in asked]
        for reply in replies:
            if isinstance(reply, BrokerUnavailable):
                raise again(reply)
        return replies

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

    def receive(self) -> None:
        """Read what has come, without waiting, and hand it out.

        Leaves it to a thread that reads already, because it waits for a reply: the
        background loop, which looks after many connections, must not be blocked with it.
        Raises BrokerUnavailable when the connection is found broken.
        """
        self._leave_parent()
        self._conversation.receive()

    def wait_for_replies(self, timeout_s: float = inf) -> None:
        """Wait until every posted command has its reply; at most *timeout_s*.

        Raises BrokerUnavailable.
        """
        self._leave_parent()
        self._conversation.wait(timeout_s)

    # -- the connection

    def connect(self) -> None:
        """Dial unless connected; raises BrokerUnavailable."""
        self._leave_parent()
        while self._conversation.stream is None:
            self._conversation.wait()  # what was lost is told before there is anything new
            in_turn(self._dial_or_wait, self._end_turn)

    def _dial_or_wait(self, turn: Turn) -> None:
        with self._lock:
            waiter = None if self._dialling.take(turn) else self._waiters.add()
        if waiter is not None:
            waiter.lock.acquire()
        elif self._conversation.stream is None:
            self._dial()

    def _end_turn(self, turn: Turn) -> None:
        if turn.roles:
            with self._lock:
                self._waiters.wake()
                self._dialling.end(turn)  # last: see in_turn

    def _dial(self) -> None:
        self._refuse_closed()
        began = monotonic()  # an address that is looked up may be out of date by the end
        connection = self.address.connect(self.options, self.name)
        try:
            prefix = self.options.global_keyprefix
            asked = ("CLIENT", "ID"), *formats.questions(prefix)
            client_id, version, older = ask_all(connection, self.address, *asked)
            formats.require_known(version, older, prefix, self.address)
            stream = Stream(connection)
        except BaseException as exc:
            hang_up(connection)
            if isinstance(exc, (*FAILURES, ReliqError)):  # not what a signal's handler raises
                raise translate(exc, self.address, self.options.socket_connect_timeout) from exc
            raise
        with self._lock:
            if self._closed or self._conversation.stream is not None:
                stream.close()  # meanwhile, or by a signal's handler
                return
            self.client_id, self.connected_at = client_id or 0, began
            self.dials += 1
            self._conversation.begin(stream)

    def _refuse_closed(self) -> None:
        if self._closed or self._reconnect_disabled:
            raise BrokerUnavailable(f"{self.address}: this connection was closed")

    def _leave_parent(self) -> None:
        if self._process != here():
            with self._lock:
                if self._process != here():
                    self._conversation.abandon()
                    self._begin()

    def _write(self, data: bytes, asked: Sequence[Asked]) -> None:
        """Write *data*, to which *asked* expect the replies; dials if need be."""
        silence_s = _LOOK_AFTER_S
        while not self._conversation.write(data, asked, silence_s):
            self._look(asked)
            silence_s = inf  # we have looked

    def _look(self, asked: Sequence[Asked]) -> None:
        """Make sure there is a socket, and that its peer did not close it long ago.

        What an event loop posts is written untried: it must not wait, and cannot dial anyway.
        """
        conversation = self._conversation
        tries = not self._reconnect_disabled or any(item.handler is None for item in asked)
        if conversation.stream is not None:
            with suppress(BrokerUnavailable):
                conversation.receive()
                if tries and conversation.was_silent_for(self.options.health_check_interval):
                    self.replies([(("PING",), None)])  # a refusal is an answer, too
        self.connect()  # where it had failed, nothing was under way: dialling again is safe
