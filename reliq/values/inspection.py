"""Read-only views of a broker: its queues, messages, consumers and servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from ..errors import BrokerUnavailable
from ..message.delivery_tag import published_ms
from ..message.envelope import Envelope, EnvelopeError, decode
from ..message.queue_arguments import declared
from .unreadable import left_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue's counts and its ledger, read at one instant."""

    name: str
    ready: int
    delayed: int
    unacked: int
    dead: int
    stored: int
    consumers: int
    ledger: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, object] = field(default_factory=dict)
    paused: bool = False
    partitions: int = 1
    """The number of partitions, as stored at the queue; a partition may have an older number."""

    @property
    def declared(self) -> dict[str, Any]:
        """The declared arguments, whether or not the engine has unpacked them."""
        limits = dict(self.arguments)
        if "" not in limits:
            return limits
        stored = limits.pop("")
        arguments = declared(stored) if isinstance(stored, bytes) else {}
        if arguments is None:
            left_out("its broker", "arguments of queues", [self.name])
        return {**(arguments or {}), **limits}


@dataclass(frozen=True, slots=True)
class Measure:
    """The data of a queue for metrics, read at one instant."""

    status: QueueStatus
    """In addition to the counters of the audit, the ledger has: redelivered, lapsed (expired
    leases), token (leases granted), nacked, replayed, and dead:<reason> for each reason."""
    now_ms: int
    """The broker's time."""
    ready: dict[int, int]
    """Ready messages by rank, without empty ranks."""
    oldest_ms: int | None
    """When the oldest of the first messages of each rank was published, by its publisher's clock;
    None if no message is ready."""
    due: int
    """Delayed messages that are due: the next reserve makes them ready."""
    concurrency: str = ""
    """The limit of messages in hand, as stored; "" if not set."""
    rate: str = ""
    """The limit of starts, as stored; "" if not set."""
    rate_state: str = ""
    """The last starts, in the format of ``keep_rate.lua``."""

    @property
    def oldest_age_s(self) -> float | None:
        """Return the age of the oldest first message; 0.0 if its publisher's clock is ahead."""
        return None if self.oldest_ms is None else max(self.now_ms - self.oldest_ms, 0) / 1000


@dataclass(frozen=True, slots=True)
class Untold:
    """Queues that cannot be read now, because a node of a cluster does not answer."""

    node: str
    """host:port; "" if no node has their slots."""
    queues: tuple[str, ...]
    """Their known names."""
    error: str
    """The reason, in one line."""

    def __str__(self) -> str:
        """Return the report for an operator."""
        names = ", ".join(map(repr, self.queues)) or "their names are unknown"
        return f"{self.node or 'no node'}: {self.error}; unreadable queues: {names}"


@dataclass(frozen=True, slots=True)
class BatchesUntold:
    """Unreadable batches: a cluster node does not answer, or a key belongs to another program."""

    batches: tuple[str, ...]
    error: str
    """The node and the reason, in one line."""

    def __str__(self) -> str:
        """Return a text for operators."""
        names = ", ".join(map(repr, self.batches)) or "unknown"
        return f"{self.error}; unreadable batches: {names}"

    @classmethod
    def by_error(cls, lost: Mapping[str, Sequence[str]]) -> list[BatchesUntold]:
        """Return one report for each error in *lost*."""
        return [cls(tuple(batches), error) for error, batches in lost.items()]


class Partial(list[T]):
    """A list of results. For a cluster, it omits the results of lost nodes.

    For other brokers, it is always complete. An unreachable broker raises BrokerUnavailable
    instead, and so does a cluster without a reachable node.
    """

    def __init__(
        self,
        items: Iterable[T] = (),
        unreachable: Iterable[object] = (),
        *,
        queried: Sequence[str] = (),
        complete: bool = True,
    ) -> None:
        super().__init__(items)
        self.unreachable: list[Any] = list(unreachable)
        """The missing parts by node, with the reason; each has a readable text form."""
        self.asked = queried
        """The queried queues and partitions."""
        self.complete = complete
        """Whether the names of all missing parts are known."""

    def __iadd__(self, more: Iterable[T]) -> Partial[T]:  # type: ignore[override, misc]
        """Append the results of *more*, and its missing parts."""
        self.extend(more)
        self.unreachable += getattr(more, "unreachable", ())
        return self

    def each(self, change: Callable[[T], U]) -> Partial[U]:
        """Return the list with *change* applied to each item."""
        return Partial(map(change, self), self.unreachable)

    def whole(self) -> list[T]:
        """Return the list; raises BrokerUnavailable if a part is missing."""
        if self.unreachable:
            raise BrokerUnavailable("; ".join(map(str, self.unreachable)))
        return self


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter."""

    tag: str
    died_ms: int
    reason: str
    count: int
    """Failed deliveries."""
    consumer: str
    error: str
    envelope: bytes | None = field(default=None, repr=False)
    """None unless requested."""

    @property
    def published_ms(self) -> int:
        """When it was published, by its publisher's clock."""
        return published_ms(self.tag)

    @property
    def message(self) -> Envelope | None:
        """The decoded envelope; None if it was not requested or cannot be read."""
        try:
            return None if self.envelope is None else decode(self.envelope)
        except EnvelopeError:
            return None

    @property
    def task(self) -> str | None:
        """The name of the Celery task."""
        message = self.message
        name = None if message is None else message.headers.get("task")
        return name if isinstance(name, str) else None

    @property
    def id(self) -> str | None:
        """The id of the Celery task, or the message id."""
        message = self.message
        if message is None:
            return None
        name = message.headers.get("id") or message.properties.get("message_id")
        return name if isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer in the register. Times are ms since the epoch, by the broker's clock."""

    id: str
    host: str
    pid: int
    version: str
    """The version of reliq."""
    queues: tuple[str, ...]
    started_ms: int
    """When the process began to consume from this broker."""
    seen_ms: int
    """Its last heartbeat: one every 20 s with the default visibility_timeout."""
    held: int
    """Messages that it held at its last heartbeat."""
    connected: bool
    """Whether its connection exists; also True if the Redis user may not list connections."""
    pool: str = ""
    """The pool of a Celery worker: prefork, thread, gevent, solo ...; "" without Celery."""
    node: str = ""
    """Celery's name of the worker, such as celery@host; "" without Celery, and before 0.3."""
    options: dict[str, Any] = field(default_factory=dict)
    """Its transport options that all consumers of a queue should share."""
    running: dict[str, int] = field(default_factory=dict)
    """For a Celery worker: queue -> running tasks that are already acked (the default of Celery).
    The worker reports changes within a second."""
    processes: int = 0
    """For a Celery worker: the maximum number of concurrent tasks."""
    failing: dict[str, Any] = field(default_factory=dict)
    """Queue -> the error of its last failed pass."""
    unprotected: tuple[str, ...] = ()
    """For a prefork worker: some of its tasks that do not run again if their process is killed,
    because they acknowledge late without ``task_reject_on_worker_lost``."""
    enforces: str = ""
    """"limits" if it enforces the limits of queues; "" for an older version, which does not."""

    @property
    def label(self) -> str:
        """The name by which its operator knows it: Celery's, or its host and pid."""
        return self.node or f"{self.host}:{self.pid}"


SCANNED_AT_ONCE = 250
"""The maximum number of messages that one step scans: two ms of the server's processor."""
SCANNED_BYTES = 1 << 20
"""The maximum bytes of envelopes that one step reads; it omits a larger envelope."""
Whereabouts: TypeAlias = Literal["there", "dead", ""]
"""The place of a message: in its queue, in any other state; a dead letter; not in the queue."""

AnyPlace: TypeAlias = Literal["ready", "delayed", "unacked", "dead"]


class Stored(NamedTuple):
    """A stored message, for operators. Reading it changes nothing."""

    tag: str
    envelope: bytes | None
    failed: int
    """Failed deliveries; -1 when it was never delivered before."""
    at_ms: int
    """By the broker's clock. delayed: when it is due; unacked: when its lease expires; dead: when
    it died; otherwise 0."""
    consumer: str
    """unacked: the holder, or "move/..." during a move; dead: the last holder; otherwise ""."""
    size: int = 0
    """Bytes of the envelope, if requested."""
    reason: str = ""
    """Why a dead letter died."""
    error: str = ""


class Position(NamedTuple):
    """The position at which a scan step begins, within the messages of one state."""

    score: str = ""
    """In the engine's format; "": at the first message."""
    skip: int = 0
    """The number of messages to skip from there."""


class ScanPage(NamedTuple):
    """The result of one scan step."""

    items: list[Stored]
    """The matching messages, in their order."""
    numbers: list[int]
    """The position of each among the scanned messages, starting at 1."""
    looked: int
    """The number of scanned messages."""
    after: Position | None
    """The start of the next step; None: there are no more messages. Messages that leave meanwhile
    do not disturb the scan. It misses messages that are inserted before the position."""


class Failure(NamedTuple):
    """A failed delivery."""

    tag: str
    at_ms: int
    """When the failure was recorded."""
    how: str
    """lapsed: the lease expired; requeued; otherwise the reason of the dead letter."""
    failed: int
    """Failed deliveries up to then."""
    consumer: str
    """The holder."""


class Located(NamedTuple):
    """One message and its position in its queue, at one instant."""

    place: AnyPlace
    before: int
    """The number of messages before it in the same state."""
    stored: Stored
    expires_ms: int | None
    """When it expires, if it is waiting and has a TTL."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """Information that a broker reports about itself."""

    broker: str
    """Its URL, without a password."""
    engine: str
    """The server's name: redis or valkey."""
    version: str
    role: str
    """master or replica; for a cluster, the number of masters; "" if unknown."""
    uptime_s: int | None
    memory_bytes: int | None
    """The memory used by its data."""
    memory_limit_bytes: int | None
    """None: the broker has no limit."""
    persistence: str
    """The settings, in a few words. They determine the data lost in a crash of the broker."""
    clients: int | None


@dataclass(frozen=True, slots=True)
class Node:
    """One server of a broker."""

    name: str
    """host:port."""
    up: bool
    """Whether it answers."""
    slots: int
    """The number of its hash slots."""
    memory_bytes: int | None
    """None: it does not answer, or refuses the query to this user."""


Severity: TypeAlias = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of the doctor, and the remedy."""

    check: str
    """The name of the check, in one or two words: maxmemory-policy, clock ..."""
    severity: Severity
    """error: messages can be lost, or nothing works; warning: a risk of later problems."""
    message: str
    remedy: str = ""
