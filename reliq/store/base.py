"""The base of the Redis store: its connections, and the parsing of replies."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from .. import store as engine
from ..client import refusals
from ..client.stream import Prefix
from ..client.wire import Wire
from ..errors import BrokerRefused, ReliqError
from ..lazy import Lazy
from ..lua import scripts
from ..lua.keys import QueueKeys, broker_keys, queue_keys
from ..values.limits import MOST_REMEMBERED
from .notifier import RedisNotifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..client.cluster.wire import ClusterWire
    from ..client.commands import Commands
    from ..client.connect import Broker
    from ..client.pipeline import OnReply
    from ..client.stream import Reply
    from ..lua.scripts import Script
    from ..options import Options
    from ..values.values import Lease, OnResult
    from .cluster.notifier import ClusterNotifier
    from .confirm import ClusterConfirmer, Confirmer

T = TypeVar("T")


def then(parse: Callable[[Reply], T], on_result: OnResult[T]) -> Callable[[Reply], None]:
    """Return a reply handler that parses the reply unless it is an error."""

    def on_reply(reply: Reply) -> None:
        on_result(reply if isinstance(reply, ReliqError) else parse(reply))

    return on_reply


def gathered(count: int, on_result: OnResult[list[Reply]]) -> Callable[[int, Reply], None]:
    """Return a handler that collects *count* numbered replies and passes them on together.

    They are passed on in the order of their numbers: a command that met an empty script cache was
    sent again. If replies are errors, the first of these is passed on instead.
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
    """Return a stored name as text. Bytes that are not UTF-8 are restored when it is sent."""
    return stored.decode("utf-8", "surrogateescape")


def texts(items: Iterable[bytes]) -> list[str]:
    """Return *items* as text."""
    return [text_of(item) for item in items]


def flat_of(leases: Iterable[Lease]) -> list[str]:
    """Return tag, token, tag, token ..., the format of script arguments."""
    return [part for lease in leases for part in lease]


class StoreBase:
    """A store's connections to one server: for calls, for posts, and for the notifier."""

    _wire: Wire | ClusterWire
    notifier: RedisNotifier | ClusterNotifier
    """The second connection, on which a consumer waits for notifications."""
    consumer: str
    """The owner of this connection's leases: the session's id and a number of its own."""
    broker: str
    """The name of the broker in messages and signals, without secrets."""
    keeps_long = False
    """Whether publish numbers are kept for a day from the first one. Otherwise, they are kept for
    an hour until the store is 15 minutes old."""
    has_nodes = False
    """Whether the broker has several nodes, which fail separately. A failure then changes
    :meth:`descriptors`, and a posted step may be delayed."""
    has_partitions = True
    """Whether a queue can be divided. False for a spool, which only records the division."""
    partitions: dict[str, int]
    """The number of partitions of each divided queue, as last reported to this process."""

    def __init__(self, address: Broker, options: Options, consumer: str) -> None:
        self.consumer = consumer
        self.broker = str(address)
        self.options = options
        self._prefix = options.global_keyprefix
        self._shared = broker_keys(self._prefix)
        self.partitions = {}
        self._open(address, f"{options.client_name}:{consumer}")
        wire = self._wire
        self.connect, self.disable_reconnect = wire.connect, wire.disable_reconnect
        self.descriptors, self.receive, self.check = wire.descriptors, wire.receive, wire.check
        self.wait_for_replies = wire.wait_for_replies
        # By script, queue and exchange.
        self._prefixes: dict[tuple[Script, str, str], Prefix] = {}
        self._kept: dict[tuple[str, str], float] = {}
        # (queue, publisher): the server keeps numbers for them that this connection stored.
        self._numbered: set[tuple[str, str]] = set()
        self._kept_epoch = 0
        self._began = monotonic()
        self._delivery_limit = options.delivery_limit or 0
        backoff = options.redelivery_backoff or (0.0, 0.0)
        self._backoff_ms = tuple(int(seconds * 1000) for seconds in backoff)
        self._dead_letter_ttl_ms = int(options.dead_letter_ttl * 1000)

    def _open(self, address: Broker, name: str) -> None:
        """Create the wires; no connection is opened yet."""
        wire = Wire(address, self.options, name)
        self._wire = wire
        listens = Wire(address, self.options, f"{name}:notification")
        self.notifier = RedisNotifier(
            listens,
            wire,
            lambda on_reply: wire.post(("CLIENT", "UNBLOCK", listens.client_id), on_reply),
        )

    @Lazy
    def confirmer(self) -> Confirmer | ClusterConfirmer:
        """Waits until messages are as safe as ``confirm`` requires."""
        return engine.Confirmer(self._wire, self._prefix)

    def _keys(self, queue: str) -> QueueKeys:
        return queue_keys(self._prefix, queue)

    def _run(self, script: Script, queue: str, args: Sequence[Any] = ()) -> Reply:
        """Run *script*, whose keys all belong to *queue*, and return its reply."""
        return self._wire.call((self._prefix_of(script, queue), *args), script)

    def _post(self, script: Script, queue: str, args: Sequence[Any], on_reply: OnReply) -> None:
        """Post *script*, whose keys all belong to *queue*."""
        self._wire.post((self._prefix_of(script, queue), *args), on_reply, script)

    def _run_in_order(self, script: Script, queue: str, args: Sequence[Any]) -> Reply:
        """Do as :meth:`_run` does, after all earlier posts."""
        return self._wire.call_in_order((self._prefix_of(script, queue), *args), script)

    def _prefix_of(self, script: Script, queue: str) -> Prefix:
        """Return the first part of a command of *script*, whose keys all belong to *queue*."""
        known = self._prefixes.get((script, queue, ""))
        return known or self._remember(script, script.of(self._keys(queue)), queue)

    def _remember(
        self, script: Script, names: Sequence[str], queue: str, exchange: str = ""
    ) -> Prefix:
        if len(self._prefixes) > MOST_REMEMBERED:
            self._prefixes.clear()
        prefix = Prefix("EVALSHA", script.sha, len(names), *names)
        self._prefixes[script, queue, exchange] = prefix
        return prefix

    def list_queue(self, queue: str, queues: str = "") -> None:
        """Enter *queue* in the list of all queues, or in the list at the key *queues*."""
        self._wire.run(scripts.LIST_QUEUE, self._shared, (queue,), queues=queues)

    @property
    def alive(self) -> bool:
        """Whether the connection is open and has not failed."""
        return self._wire.alive

    @property
    def connected_at(self) -> float:
        """When connecting began (this process's monotonic clock)."""
        return self._wire.connected_at

    @property
    def epoch(self) -> int:
        """A counter that grows with each reconnection."""
        return self._wire.connections

    @property
    def registered_by(self) -> object:
        """The connection that the register knows for this store; a reconnection changes it."""
        return self._wire.connections, self._wire.client_id

    def require_writable(self) -> None:
        """Raise BrokerUnavailable unless the broker accepts writes now; replicas accept logins."""
        with suppress(BrokerRefused):  # it is the master; this refusal does not matter here
            self.probe()

    def close(self) -> None:
        """Close for good. Pending posts get a BrokerUnavailable."""
        self.notifier.close()
        self._wire.close()

    def is_unreachable(self, queue: str) -> bool:
        """Whether the node of *queue* is known to be unreachable; does not wait."""
        del queue
        return False

    def node_of(self, queue: str) -> str:
        """Return the name of the node of *queue* in messages; without nodes, the broker's name."""
        del queue
        return self.broker

    def patience(self, seconds: float) -> AbstractContextManager[None]:
        """Limit this thread's wait for one of several nodes; then BrokerTimeout is raised."""
        del seconds
        return nullcontext()

    @property
    def waiting(self) -> bool:
        """Whether a post has no reply yet."""
        return self._wire.waiting

    def probe(self, *, whole: bool = False) -> None:
        """Raise ReliqError unless the broker answers and accepts a write now.

        One of several nodes is enough; with *whole*, each must. The write needs no memory:
        clients must be able to connect to a full server, at least to drain it.
        """
        del whole
        self._wire.call(("DEL", self._shared.probe))

    def server(self) -> tuple[str, str]:
        """Return (this connection's client id, the server's run id); "" for an unknown one."""
        return server(self._wire)

    def now_ms(self) -> int:
        """Return the broker's time, in ms since the epoch."""
        seconds, micros = self._wire.call(("TIME",))
        return int(seconds) * 1000 + int(micros) // 1000

    def broker_id(self) -> str:
        """Return the name by which other brokers know this one; created at the first call."""
        key = self._shared.broker_id
        name = self._wire.call(("GET", key))
        if name is None:
            _, name = self._wire.call_all(("SET", key, os.urandom(8).hex(), "NX"), ("GET", key))
        return str(name.decode())


def server(wire: Commands) -> tuple[str, str]:
    """Return (a connection's client id, the server's run id); "" for an unknown one."""
    wire.connect_to_post()
    info: bytes = ask_if_allowed(wire, "INFO", "server") or b""
    fields = dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)
    return str(wire.client_id or ""), fields.get(b"run_id", b"").decode()


def ask_if_allowed(wire: Commands, *command: str) -> Reply | None:
    """Return the reply, or None if the broker refuses this optional command."""
    if refusals.lacks(wire.address.identity, command):
        return None
    try:
        return wire.call(command)
    except BrokerRefused as exc:
        if exc.passes:
            raise
        refusals.note(wire.address.identity, command, exc)
        return None
