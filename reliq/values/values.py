"""The values passed to and from the engine: messages, leases and the results of steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

from ..errors import ReliqError

if TYPE_CHECKING:
    from ..options import Confirm
    from .inspection import DeadLetter

T = TypeVar("T")
OnResult: TypeAlias = Callable[[T | ReliqError], None]
"""Receives the result of a posted step, or its error."""

How: TypeAlias = Literal["undelivered", "released", "nacked", "begun"]
"""How a message returns to its queue. *undelivered*: the application never received it, or a
worker did not begin its task. *released*: it counts as redelivered, not as failed. *nacked*: it
counts as a failed delivery. *begun*: it was acked as its task began, and is finished."""


class Lease(NamedTuple):
    """The right to one message. A step with an outdated token is refused."""

    tag: str
    token: str


class _Watchable:
    __slots__ = ("__weakref__",)  # dataclasses of Python 3.10 cannot add it


@dataclass(slots=True, unsafe_hash=True)
class Delivery(_Watchable):
    """One reserved message. Its lease is held while this object or its message exists."""

    queue: str
    tag: str
    token: str
    failed: int
    """Failed deliveries; -1 when it was never delivered before."""
    envelope: bytes | None
    place: str = ""
    """With no_ack: its former place, in the engine's format, for :meth:`hand_back`."""
    expires_ms: int = -1
    """With no_ack: when it expires, by the broker's clock; -1: never."""


class Reservation(NamedTuple):
    """The result of one reserve."""

    deliveries: list[Delivery]
    next_due_ms: int
    """Time until the next delayed message is due; -1: there is none."""
    lease_ms: int
    left: bool
    """Whether this consumer may take more ready messages."""
    held_back: bool = False
    """Whether the rest is withheld until this consumer has settled its poison candidate."""
    claimed: bool = False
    """Whether a message waits for an isolated delivery to this consumer, which gets no other."""
    isolated: bool = False
    """Whether this is an isolated delivery: the consumer gets no other until it is settled."""
    limited: bool = False
    """Whether the queue has limits (``x-concurrency``, ``x-rate``)."""


class Logged(NamedTuple):
    """Entries of the log of an exchange."""

    place: str
    """The place after these entries, for the next read."""
    entries: list[tuple[str, bytes]]
    """Delivery tag and envelope of each."""


class Promoted(NamedTuple):
    """The state of a queue after due messages were made ready for other consumers."""

    next_due_ms: int
    """Time until the next delayed message is due; -1: there is none."""
    left: bool
    """Whether messages are ready and the queue is not paused."""


# The load of a consumer when it reserves. An isolated delivery needs a consumer that is ALONE. A
# BUSY one has waited in vain for its other messages to end, and continues.
BUSY, HOLDING, IDLE, ALONE = -1, 0, 1, 2

# The maximum of one reserve, in bytes of envelopes; one message may exceed it. The limit keeps
# replies short, and a consumer without a prefetch limit holds few messages in advance.
RESERVED_BYTES = 4 << 20


@dataclass(slots=True, unsafe_hash=True)
class Publication:
    """One message to publish into one queue."""

    queue: str
    tag: str
    envelope: bytes
    rank: int
    publisher: str
    number: int = 0
    """The publisher's number in this queue; 0: the publish is never retried."""
    low_water: int = 0
    """Every lower number is settled: a late publish with one is refused as a duplicate."""
    delay_ms: int = 0
    ttl_ms: int = -1
    """-1: none."""
    exchange: str = ""
    """The exchange that routed it; "" for the anonymous exchange, which can create a queue."""
    version: bytes = b""
    """The version of the exchange's bindings at routing; b"" for the anonymous exchange."""
    moved: bool = False
    """Whether the number is that of a move. Such numbers are kept as long as a move may last."""
    create: bool = True
    """Whether the anonymous exchange creates a missing queue."""
    logged: bool = False
    """Whether it goes to the log of its exchange; *queue* then only names the log."""


BY_STORING = frozenset({"none", "accepted"})


class Wanted(NamedTuple):
    """The confirmation that a publish waits for."""

    level: Confirm
    replicas: int
    timeout_ms: int

    @property
    def by_storing(self) -> bool:
        """Whether a stored message needs no further confirmation."""
        return self.level in BY_STORING


# The outcome of one publication. CREATED: the message was stored and its queue created;
# DUPLICATE: an earlier try stored it. The others stored nothing. STALE: the bindings have changed;
# FULL: the queue is at its limit and rejects; CLOSED: the queue is a partition that accepts no
# new messages.
STORED, CREATED, DUPLICATE, NO_QUEUE, STALE, FULL, CLOSED = 1, 2, 0, -1, -2, -3, -4


class Returned(NamedTuple):
    """A message whose delivery failed: it is back in its queue, or a dead letter."""

    tag: str
    failed: int
    """Failed deliveries, including this one if it counts."""
    consumer: str
    """The former holder."""
    envelope: bytes | None
    """None unless requested."""


class Released(NamedTuple):
    """The result of a release."""

    refused: list[str]
    """Tags whose lease was lost before; they are unchanged."""
    dead: list[Returned]
    """Messages that reached their delivery limit by this requeue."""


class Lost(NamedTuple):
    """The lost leases that a renewal found, by tag."""

    tags: list[str]
    """All lost leases: the message was returned, taken by another consumer, or removed."""
    gone: list[str]
    """Those whose message is no longer stored."""
    lease_ms: int
    """The extension of the other leases. The queue's own lease overrides the requested one."""


# The result of a claim: it is the caller's own, or another process has finished the work.
CLAIMED, FINISHED = -1, 0


class Restored(NamedTuple):
    """The result of one step of restore_visible."""

    granted: bool
    more: bool
    retry_ms: int
    """If refused: how long the pass of another consumer remains valid."""
    unacked: int
    by_consumer: dict[str, int]
    """The number of ended leases, by holder."""
    restored: list[Returned]
    """Empty unless requested."""
    dead: list[Returned]
    consumers: list[str]
    """All consumers of the queue, alive or dead."""
    to_route: int
    """Dead letters to publish to the queue's ``x-dead-letter-exchange``."""


class Duties(NamedTuple):
    """Queues that need a check by some consumer, even if no process consumes from them."""

    due: list[str]
    """Queues without a recent check: their messages, or the queues themselves, may expire."""
    more: bool
    """Whether more queues are due: request them at once."""
    dead_letter_routed: list[str]
    """Queues with an ``x-dead-letter-exchange``."""
    new: bool = False
    """Whether the consumer was not in the register. If it was before, it was considered dead, or
    the broker has lost the register."""


class Layout(NamedTuple):
    """The partitions of a queue."""

    partitions: int
    """The number of partitions that accept messages. Partition 0 has the queue's name."""
    end: int
    """Partitions from this number on are empty or missing; at least *partitions*."""
    paused: bool = False
    """Whether the queue is paused; a survey does not read this."""


class Work(NamedTuple):
    """The pending work of one queue."""

    pass_ms: int
    """0: a step of restore_visible is needed; -1: none is needed; else the ms for which the pass
    of another consumer remains valid."""
    flags: frozenset[str] = frozenset()
    """``expired``: messages have expired. ``idle``: its ``x-expires`` may have passed. ``gone``: it
    does not exist, but may still be bound. ``job_events``: they are to be reported to batches."""
    layout: Layout | None = None
    """Its partitions; None: it is not divided."""


class QueueDeclared(NamedTuple):
    """The result of a declaration."""

    outcome: Literal["missing", "existed", "created", "differs"]
    messages: int
    consumers: int
    arguments: bytes


class QueueDeleted(NamedTuple):
    """The result of a deletion."""

    outcome: Literal["deleted", "missing", "not_empty", "in_use", "not_idle"]
    number: int
    """Messages (deleted, not_empty), consumers (in_use), or remaining ms (not_idle)."""


@dataclass(frozen=True, slots=True)
class ExchangeTable:
    """An exchange as stored at the broker."""

    declaration: bytes | None
    version: bytes | None
    bindings: frozenset[bytes]


class Move(NamedTuple):
    """A message in transfer to another queue or broker, which identifies it by the number."""

    tag: str
    number: int
    envelope: bytes
    delay_ms: int = 0
    """Time until it is due."""
    ttl_ms: int = -1
    """Time until it expires; -1: never."""
    failed: int = -1
    """Failed deliveries; -1 when it was never delivered before."""
    dead_letter: DeadLetter | None = None
    """Its record as a dead letter, if it remains one at the target."""


class Liveness(NamedTuple):
    """The state of one consumer, according to the register."""

    client_id: str
    run_id: str
    queues: tuple[str, ...]
    connected: bool
    """Whether its connection exists; also True if this cannot be determined."""
    silent_ms: int = 0
    """Time since its last heartbeat."""
    ttl_ms: int = 60_000
    """The silence after which it is considered dead: a few heartbeats."""
    host: str = ""
    pid: int = 0

    @property
    def lapsed(self) -> bool:
        """Whether its heartbeats have stopped."""
        return self.silent_ms >= self.ttl_ms


class Attached(NamedTuple):
    """The consumers of a queue, alive or dead."""

    temporary: bool
    """Whether the queue expires or is deleted with its last consumer."""
    marks: dict[str, str]
    """Consumer -> a mark that changes each time the consumer begins to consume."""


def ignore_result(_result: object) -> None:
    """Ignore the result of a posted step."""
