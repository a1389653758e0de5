"""Wire: the connections of one store to one Redis server.

A *call* waits for its reply, over a connection of a pool (:mod:`.calls`). A *post* is written at
once and its reply is read later (:mod:`.posts`); all posts share one connection, in order. Calls
and posts have no order between them. Owns when connections are opened, and the effect of a fork
on them. Knows nothing of queues. Thread-safe.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING
from weakref import ref

from ..errors import BrokerUnavailable, ReliqError, again
from ..forks import PROCESS, OwnLock, here
from ..values.values import ignore_result
from . import refusals
from .calls import Calls
from .commands import Commands, raise_first
from .connect import ask_all, format_questions, require_known_format
from .pipeline import OnReply, Pipeline, Post
from .posts import Posts
from .stream import Command, Reply, Stream, pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..lua.scripts import Script
    from ..options import Options
    from .connect import Broker


class Wire(Commands):
    """Connections that are opened at their first use, and again after a failure.

    Pending commands of a failed connection get a BrokerUnavailable; the next command
    reconnects. A forked child starts anew, without the parent's sockets.
    """

    _lock = OwnLock()
    """Held by the thread that opens the first connection; other threads wait for it."""

    dials = 0
    connected_at = 0.0

    def __init__(self, address: Broker, options: Options, name: str) -> None:
        self.address = address
        self.options = options
        self.name = name
        self._closed = False
        self._reconnect_disabled = False
        self._begin()

    def _begin(self) -> None:
        process = here()
        options = self.options
        self._alive = False
        self._broken = 0  # the value of calls.broken at the last connection
        self._streams: list[ref[Stream]] = []  # each operation is atomic and needs no lock
        self.calls = Calls(
            self.address,
            options.socket_timeout,
            options.health_check_interval or inf,
            self._dial_another,
            self._lost_by_call,
        )
        self.pipeline = Pipeline(self.address, options.socket_timeout, self._lost)
        self.posts = Posts(self.pipeline)
        self._process = process  # last: another thread of the child checks it

    def _leave_parent(self) -> None:
        if self._process != here():
            with self._lock:
                if self._process != here():
                    for stream in self._open():
                        stream.close()
                    self._begin()

    # -- state

    @property
    def alive(self) -> bool:
        """Whether the server is connected and was not lost since."""
        return self._alive and self._process == PROCESS[0]

    @property
    def waiting(self) -> bool:
        """Whether a post has no reply yet, or its handler has not returned."""
        return self.pipeline.waiting

    @property
    def silent_s(self) -> float:
        """Seconds without progress while a post waits for its reply; otherwise 0."""
        waiting = self.pipeline.pending and self._process == here()
        return monotonic() - self.pipeline.since if waiting else 0.0

    @property
    def client_id(self) -> int:
        """The server's id of the connection for posts; 0 if it is unknown."""
        stream = self.pipeline.stream
        return 0 if stream is None else stream.client_id

    def fileno(self) -> int:
        """Return the descriptor to watch for replies; connects if necessary."""
        self.connect_to_post()
        stream = self.pipeline.stream
        if stream is None:
            raise BrokerUnavailable(f"{self.address}: the connection was closed")
        return stream.fileno()

    def descriptors(self) -> dict[int, object]:
        """Return the descriptors to watch for replies, with their owners; connects if necessary.

        Another owner means another connection with the same number.
        """
        return {self.fileno(): self}

    def disable_reconnect(self) -> None:
        """Never reconnect: an event loop watches this very descriptor."""
        self._reconnect_disabled = True

    # -- the connections

    def connect(self) -> None:
        """Connect unless connected. Raises BrokerUnavailable."""
        self._leave_parent()
        with self._lock:
            if self._alive:
                return
            self._refuse_closed()
            if self._reconnect_disabled:
                raise BrokerUnavailable(f"{self.address}: this connection was closed")
            began = monotonic()  # a resolved address may be outdated by the end
            stream = self._dial()
            self.calls.close()
            self.calls.add(stream)
            self.connected_at = began
            self.connections += 1
            self._alive = True

    def connect_to_post(self) -> None:
        """Open the connection for posts unless it is open. Raises BrokerUnavailable."""
        self._leave_parent()
        while self.pipeline.stream is None:
            self.posts.wait()  # report lost commands before sending new ones
            with self._lock:
                self.connect()
                if self.pipeline.stream is None:
                    self.pipeline.begin(self.calls.take())

    def _dial_another(self) -> Stream:
        """Return a connection for a call: the server's first one, or another."""
        if not self._alive:
            self.connect()
            return self.calls.take()
        began = monotonic()
        stream = self._dial()
        if self._broken != self.calls.broken:  # the idle ones were closed: an outage, perhaps
            self._broken, self.connected_at = self.calls.broken, began
        return stream

    def _dial(self) -> Stream:
        self._refuse_closed()
        connection = self.address.connect(self.options, self.name)
        with connection.dialling():
            prefix = self.options.global_keyprefix
            questions = ("CLIENT", "ID"), *format_questions(prefix)
            client_id, version, older = ask_all(connection, self.address, *questions)
            require_known_format(version, older, prefix, self.address)
            stream = Stream(connection, client_id or 0)
            stream.sends_texts = refusals.lacks(self.address.identity, refusals.EVALSHA)
            self._streams.append(ref(stream, self._streams.remove))
            self.dials += 1
            self._refuse_closed()  # closed meanwhile
        return stream

    def _open(self) -> list[Stream]:
        """Return the open connections, those in use by calls included."""
        streams = (known() for known in self._streams.copy())
        return [stream for stream in streams if stream is not None]

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BrokerUnavailable(f"{self.address}: this connection was closed")

    def _lost(self, _error: ReliqError) -> None:
        self._alive = False
        self.calls.close()

    def _lost_by_call(self, error: ReliqError) -> None:
        self._lost(error)
        self.posts.hang_up(again(error))

    def hang_up(self, error: ReliqError) -> None:
        """Close the connections; *error* is the reply to all pending commands."""
        if self._process == here():
            self._lost_by_call(error)
            for stream in self._open():
                stream.interrupt()

    def close(self) -> None:
        """Close for good. Pending and later commands get a BrokerUnavailable."""
        self._leave_parent()
        self._closed = True
        waits = self.pipeline.stream is not None
        self.hang_up(BrokerUnavailable(f"{self.address}: the connection was closed"))
        if waits or self.pipeline.waiting:
            self.posts.wait()

    # -- commands

    def replies(
        self, commands: Sequence[tuple[Command, Script | None]], patience_s: float = 0.0
    ) -> list[Reply]:
        """Write all *commands* at once; refusals are returned as replies."""
        if self._process != PROCESS[0]:
            self._leave_parent()
        replies = self.calls.replies(commands, patience_s) if commands else []
        return raise_first(replies, BrokerUnavailable)

    def call(self, command: Command, script: Script | None = None) -> Reply:
        """Write *command*, wait for its reply and return it: the path of each publish."""
        if self._process != PROCESS[0]:
            self._leave_parent()
        calls, commands = self.calls, ((command, script),)
        (reply,) = calls.end(calls.begin(commands), commands)
        if isinstance(reply, ReliqError):
            raise again(reply)
        return reply

    def ask(self, command: Command, within_s: float) -> Reply:
        """Return the reply to *command*. Raises BrokerTimeout, which affects no other command."""
        self._leave_parent()
        replies = self.calls.replies(((command, None),), ends_at=monotonic() + within_s)
        return raise_first(replies, ReliqError)[0]

    def post(
        self,
        command: Command,
        on_reply: OnReply = ignore_result,
        script: Script | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Write *command* now; connects if necessary."""
        if self._process != PROCESS[0]:
            self._leave_parent()
        data = pack(command)
        post = Post(command, script, patience_s, on_reply)
        while not self.posts.post(data, post):
            self.connect_to_post()

    def call_in_order(self, command: Command, script: Script) -> Reply:
        """Run *command* after all earlier posts: post it and wait."""
        replies: list[Reply] = []
        self.post(command, replies.append, script)
        self.posts.wait_for(lambda: bool(replies))
        return raise_first(replies, ReliqError)[0]

    def receive(self) -> None:
        """Read what has arrived, without waiting (:meth:`.posts.Posts.receive`)."""
        self._leave_parent()
        self.posts.receive()

    def check(self) -> None:
        """Raise BrokerTimeout if the reply to the oldest post is overdue."""
        if self._process == PROCESS[0]:
            self.posts.check()

    def wait_for_replies(self, timeout_s: float = inf) -> None:
        """Wait for the replies to all posts so far (:meth:`.posts.Posts.wait`)."""
        self._leave_parent()
        self.posts.wait(timeout_s)
