"""What the parts of the Redis store share: its connection, and how replies are read."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from ...errors import BrokerRefused, ReliqError
from ...store.limits import MOVES_KEPT_MS
from .. import redis as engine
from . import keys, refusals, scripts
from .keys import QueueKeys, queue_keys
from .notifier import RedisNotifier
from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ...options import Options
    from ...store.protocol import Notifier, OnResult
    from ...store.values import Lease
    from .commands import Commands, Confirming
    from .connect import Broker
    from .stream import Command, Reply

T = TypeVar("T")


def then(parse: Callable[[Reply], T], on_result: OnResult[T]) -> Callable[[Reply], None]:
    """Return a reply handler that parses what is not an error."""

    def on_reply(reply: Reply) -> None:
        on_result(reply if isinstance(reply, ReliqError) else parse(reply))

    return on_reply


def gathered(count: int, on_result: OnResult[list[Reply]]) -> Callable[[int, Reply], None]:
    """Return a handler of *count* replies, each given with its place, that passes them on together.

    In the order of their places: one that met an empty script cache was sent again. Where one is
    an error, the first of these is passed on instead.
    """
    replies: dict[int, Reply] = {}

    def on_reply(place: int, reply: Reply) -> None:
        replies[place] = reply
        if len(replies) == count:
            ordered = [replies[i] for i in range(count)]
            error = next((item for item in ordered if isinstance(item, ReliqError)), None)
            on_result(error or ordered)

    return on_reply


def text_of(stored: bytes) -> str:
    """Return a stored name as text; bytes that are none come back as they are when it is sent."""
    return stored.decode("utf-8", "surrogateescape")


def texts(items: Iterable[bytes]) -> list[str]:
    """Return *items* as text."""
    return [text_of(item) for item in items]


def flat_of(leases: Iterable[Lease]) -> list[str]:
    """Return tag, token, tag, token ..., as scripts take them."""
    return [part for lease in leases for part in lease]


class StoreBase:
    """A store's connections to one server: for calls, for posts, and for the notifier."""

    _wire: Commands
    _notifier: Notifier

    def __init__(self, address: Broker, options: Options, consumer: str) -> None:
        self.consumer = consumer
        self.broker = str(address)
        self.options = options
        self._prefix = options.global_keyprefix
        self.partitions: dict[str, int] = {}
        self._open(address, f"{options.client_name}:{consumer}")
        # The one command that is sent for each message: its constant part, by queue.
        self._ack_commands: dict[str, Command] = {}
        self._publish_constants: dict[tuple[str, str], Command] = {}
        self._kept: dict[tuple[str, str], float] = {}
        # Queue and publisher: whose numbers this connection has let the server keep.
        self._numbered: set[tuple[str, str]] = set()
        self._kept_epoch = 0
        self._began = monotonic()
        self.keeps_long = False
        self._delivery_limit = options.delivery_limit or 0
        backoff = options.redelivery_backoff or (0.0, 0.0)
        self._backoff_ms = tuple(int(seconds * 1000) for seconds in backoff)
        self._dead_letter_ttl_ms = int(options.dead_letter_ttl * 1000)

    def _open(self, address: Broker, name: str) -> None:
        """Make what commands go over; nothing is dialled yet."""
        wire = Wire(address, self.options, name)
        self._wire = wire
        listens = Wire(address, self.options, f"{name}:notification")
        self._notifier = RedisNotifier(
            listens,
            wire,
            lambda on_reply: wire.post(("CLIENT", "UNBLOCK", listens.client_id), on_reply),
        )

    @cached_property
    def _confirmer(self) -> Confirming:
        """What waits until messages are as safe as ``confirm`` asks."""
        return engine.Confirmer(self._wire, self._prefix, MOVES_KEPT_MS)

    def _keys(self, queue: str) -> QueueKeys:
        return queue_keys(self._prefix, queue)

    def _enlist(self, queues: str, queue: str) -> None:
        """Enter *queue* in the list of all, or of some, that is at the key *queues*."""
        names = scripts.LIST_QUEUE.named(
            queues=queues,
            stored_format=keys.stored_format(self._prefix),
            guard=keys.guard_of_all(self._prefix),
        )
        self._wire.execute(scripts.LIST_QUEUE, names, (queue,))

    @property
    def notifier(self) -> Notifier:
        """The second socket, on which a consumer waits."""
        return self._notifier

    def end_wait(self) -> None:
        """End the notifier's wait, so that it can begin anew for other queues."""
        self._notifier.end_wait()

    @property
    def alive(self) -> bool:
        """Whether the command socket is open and has not failed."""
        return self._wire.alive

    @property
    def connected_at(self) -> float:
        """When the command socket began to be opened (monotonic clock)."""
        return self._wire.connected_at

    @property
    def epoch(self) -> int:
        """How often the server was connected to, after it was lost."""
        return self._wire.connections

    @property
    def registered_by(self) -> object:
        """The connection by which the register knows this store."""
        return self._wire.connections, self._wire.client_id

    def connect(self) -> None:
        """Open the command socket unless it is open; raises BrokerUnavailable."""
        self._wire.connect()

    def require_writable(self) -> None:
        """Raise BrokerUnavailable unless the server takes writes now.

        A replica, and a server that is loading, accept a login all the same.
        """
        with suppress(BrokerRefused):  # it is the master; what it refuses is not for now
            self.probe()

    def close(self) -> None:
        """Close both sockets; what was posted gets a BrokerUnavailable."""
        self._notifier.close()
        self._wire.close()

    has_nodes = False
    has_partitions = True

    def is_away(self, queue: str) -> bool:
        """Mean nothing: there is one server."""
        del queue
        return False

    def node_of(self, queue: str) -> str:
        """Return the name of the broker: there is one server."""
        del queue
        return self.broker

    def patience(self, seconds: float) -> AbstractContextManager[None]:
        """Mean nothing: there are no nodes."""
        del seconds
        return nullcontext()

    def descriptors(self) -> Mapping[int, object]:
        """Return the descriptor to watch for replies."""
        return self._wire.descriptors()

    def disable_reconnect(self) -> None:
        """Never open the command socket anew: an event loop watches it."""
        self._wire.disable_reconnect()

    def receive(self) -> None:
        """Read replies that have come, without waiting."""
        self._wire.receive()

    def wait_for_replies(self, timeout_s: float = inf) -> None:
        """Wait for the replies of all that was posted; at most *timeout_s*."""
        self._wire.wait_for_replies(timeout_s)

    def check(self) -> None:
        """Raise BrokerTimeout if a reply is overdue."""
        self._wire.check()

    @property
    def waiting(self) -> bool:
        """Whether something posted has no answer yet."""
        return self._wire.waiting

    def probe(self, *, whole: bool = False) -> None:
        """Raise ReliqError unless the server answers and accepts a write now.

        One that does not grow: a full server is one to go to, if only to drain it.
        """
        del whole
        self._wire.call(("DEL", keys.probe(self._prefix)))

    def server(self) -> tuple[str, str]:
        """Return (this connection's client id, the server's run id), "" for what is not told."""
        self._wire.connect_to_post()
        info: bytes = self._ask_if_allowed("INFO", "server") or b""
        fields = dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)
        return str(self._wire.client_id or ""), fields.get(b"run_id", b"").decode()

    def _ask_if_allowed(self, *command: str) -> Reply | None:
        """Return the reply; None where the broker refuses the command, as it may."""
        if refusals.lacks(self._wire.address.identity, command):
            return None
        try:
            return self._wire.call(command)
        except BrokerRefused as exc:
            refusals.note(self._wire.address.identity, command, exc)
            return None

    def broker_id(self) -> str:
        """Return the name by which other brokers know this one."""
        key = keys.broker_id(self._prefix)
        name = self._wire.call(("GET", key))
        if name is None:
            _, name = self._wire.exchange(
                [(("SET", key, os.urandom(8).hex(), "NX"), None), (("GET", key), None)]
            )
        return str(name.decode())
