"""What the parts of the Redis store share: its connection, and how replies are read."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import BrokerRefused, ReliqError
from ...lazy import Lazy
from ...store.limits import MOST_REMEMBERED
from .. import redis as engine
from . import refusals, scripts
from .keys import QueueKeys, broker_keys, queue_keys
from .notifier import RedisNotifier
from .stream import Prefix
from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...options import Options
    from ...store.values import Lease, OnResult
    from .cluster.notifier import ClusterNotifier
    from .cluster.wire import ClusterWire
    from .commands import Commands
    from .confirm import ClusterConfirmer, Confirmer
    from .connect import Broker
    from .pipeline import OnReply
    from .scripts import Script
    from .stream import Reply

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

    _wire: Wire | ClusterWire
    notifier: RedisNotifier | ClusterNotifier
    """The second half of the connection, on which a consumer waits."""
    consumer: str
    """The owner of the leases of this connection: the session's id and a number of its own."""
    broker: str
    """The name of the broker in messages and signals; nothing in it is secret."""
    keeps_long = False
    """Whether numbers of publishers are kept for a day from the first one on. Otherwise for an
    hour until the connection has been used for a quarter of one."""
    has_nodes = False
    """Whether the broker is several nodes, of which one may be lost while the others go on. Its
    :meth:`descriptors` change then, and a step that was posted to one may take its time."""
    has_partitions = True
    """Whether a queue can be divided; False at a spool, which only notes how."""
    partitions: dict[str, int]
    """Of queues that are divided: into how many partitions, as this process was told last."""

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
        # Queue and publisher: whose numbers this connection has let the server keep.
        self._numbered: set[tuple[str, str]] = set()
        self._kept_epoch = 0
        self._began = monotonic()
        self._delivery_limit = options.delivery_limit or 0
        backoff = options.redelivery_backoff or (0.0, 0.0)
        self._backoff_ms = tuple(int(seconds * 1000) for seconds in backoff)
        self._dead_letter_ttl_ms = int(options.dead_letter_ttl * 1000)

    def _open(self, address: Broker, name: str) -> None:
        """Make what commands go over; nothing is dialled yet."""
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
        """What waits until messages are as safe as ``confirm`` asks."""
        return engine.Confirmer(self._wire, self._prefix)

    def _keys(self, queue: str) -> QueueKeys:
        return queue_keys(self._prefix, queue)

    def _run(self, script: Script, queue: str, args: Sequence[Any] = ()) -> Reply:
        """Run *script*, all of whose keys are those of *queue*, and return its reply."""
        return self._wire.call((self._prefix_of(script, queue), *args), script)

    def _post(self, script: Script, queue: str, args: Sequence[Any], on_reply: OnReply) -> None:
        """Post *script*, all of whose keys are those of *queue*."""
        self._wire.post((self._prefix_of(script, queue), *args), on_reply, script)

    def _run_in_order(self, script: Script, queue: str, args: Sequence[Any]) -> Reply:
        """Do as :meth:`_run` does, behind what was posted before."""
        return self._wire.call_in_order((self._prefix_of(script, queue), *args), script)

    def _prefix_of(self, script: Script, queue: str) -> Prefix:
        """Return the first part of a command of *script*, all of whose keys are *queue*'s."""
        found = self._prefixes.get((script, queue, ""))
        return found or self._remember(script, script.of(self._keys(queue)), queue)

    def _remember(
        self, script: Script, names: Sequence[str], queue: str, exchange: str = ""
    ) -> Prefix:
        if len(self._prefixes) > MOST_REMEMBERED:
            self._prefixes.clear()
        prefix = Prefix("EVALSHA", script.sha, len(names), *names)
        self._prefixes[script, queue, exchange] = prefix
        return prefix

    def list_queue(self, queue: str, queues: str = "") -> None:
        """Enter *queue* in the list of all, or in that at the key *queues*."""
        self._wire.run(scripts.LIST_QUEUE, self._shared, (queue,), queues=queues)

    @property
    def alive(self) -> bool:
        """Whether the connection is open and has not failed."""
        return self._wire.alive

    @property
    def connected_at(self) -> float:
        """When it began to be opened (this process's monotonic clock)."""
        return self._wire.connected_at

    @property
    def epoch(self) -> int:
        """Grows each time the connection is opened anew."""
        return self._wire.connections

    @property
    def registered_by(self) -> object:
        """The connection by which the register knows this store: another, where it is another."""
        return self._wire.connections, self._wire.client_id

    def require_writable(self) -> None:
        """Raise BrokerUnavailable unless the broker takes writes now: a replica lets us log in."""
        with suppress(BrokerRefused):  # it is the master; what it refuses is not for now
            self.probe()

    def close(self) -> None:
        """Close for good; what was posted gets a BrokerUnavailable."""
        self.notifier.close()
        self._wire.close()

    def is_away(self, queue: str) -> bool:
        """Whether the node that has *queue* is known not to answer; does not wait."""
        del queue
        return False

    def node_of(self, queue: str) -> str:
        """Return how messages name the node that has *queue*; the broker, where it is one."""
        del queue
        return self.broker

    def patience(self, seconds: float) -> AbstractContextManager[None]:
        """Let the thread wait no longer than that for one of several nodes: BrokerTimeout then."""
        del seconds
        return nullcontext()

    @property
    def waiting(self) -> bool:
        """Whether something posted has no answer yet."""
        return self._wire.waiting

    def probe(self, *, whole: bool = False) -> None:
        """Raise ReliqError unless the broker answers and accepts a write now.

        Of several nodes one is enough; *whole*: all have to. A write that does not grow: a full
        server is one to go to, if only to drain it.
        """
        del whole
        self._wire.call(("DEL", self._shared.probe))

    def server(self) -> tuple[str, str]:
        """Return (this connection's client id, the server's run id), "" for what is not told."""
        return server(self._wire)

    def now_ms(self) -> int:
        """Return the broker's time, in ms since the epoch."""
        seconds, micros = self._wire.call(("TIME",))
        return int(seconds) * 1000 + int(micros) // 1000

    def broker_id(self) -> str:
        """Return the name by which other brokers know this one; it is given at the first call."""
        key = self._shared.broker_id
        name = self._wire.call(("GET", key))
        if name is None:
            _, name = self._wire.call_all(("SET", key, os.urandom(8).hex(), "NX"), ("GET", key))
        return str(name.decode())


def server(wire: Commands) -> tuple[str, str]:
    """Return (the client id of a connection, the server's run id), "" for what is not told."""
    wire.connect_to_post()
    info: bytes = ask_if_allowed(wire, "INFO", "server") or b""
    fields = dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)
    return str(wire.client_id or ""), fields.get(b"run_id", b"").decode()


def ask_if_allowed(wire: Commands, *command: str) -> Reply | None:
    """Return the reply; None where the broker refuses the command, as it may."""
    if refusals.lacks(wire.address.identity, command):
        return None
    try:
        return wire.call(command)
    except BrokerRefused as exc:
        refusals.note(wire.address.identity, command, exc)
        return None


def queues_of(wire: Commands, prefix: str) -> list[str]:
    """Return the names of all queues."""
    listed = sorted(texts(wire.call(("ZRANGE", broker_keys(prefix).queues, 0, -1))))
    # Whoever declared one, or deleted it, may have died half way.
    there = wire.call_all(*(("EXISTS", queue_keys(prefix, queue).meta) for queue in listed))
    return [queue for queue, exists in zip(listed, there, strict=True) if exists]
