"""The values that cross the contract: messages on their way, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

from ..errors import ReliqError

if TYPE_CHECKING:
    from .inspection import DeadLetter

T = TypeVar("T")
OnResult: TypeAlias = Callable[[T | ReliqError], None]
"""Gets the result of a step that was posted, or the error it ended with."""

How: TypeAlias = Literal["undelivered", "released", "nacked"]
"""How a message goes back: it was never given to the application; in order
(redelivered, not counted); or as a failed delivery (counted)."""


class Lease(NamedTuple):
    """The right to work on one message: refused once another consumer has it."""

    tag: str
    token: str


@dataclass(slots=True, unsafe_hash=True)
class Delivery:
    """One message as it was taken."""

    queue: str
    tag: str
    token: str
    failed: int
    """Failed deliveries; -1 when it was never delivered before."""
    envelope: bytes | None
    place: str = ""
    """Of one taken with no_ack: where it stood, in the engine's words; for :meth:`hand_back`."""
    expires_ms: int = -1
    """Of one taken with no_ack: when it expires, by the broker's clock; -1: never."""


class Reservation(NamedTuple):
    """What one reserve brought."""

    deliveries: list[Delivery]
    next_due_ms: int
    """Until the next delayed message is due; -1 when none is."""
    lease_ms: int
    left: bool
    """Whether messages were left ready that this consumer may take."""
    held_back: bool = False
    """Whether the rest is kept from this consumer until it is done with its poison candidate."""
    claimed: bool = False
    """Whether a message waits to be delivered to this consumer alone: it gets nothing else."""
    isolated: bool = False
    """Whether what was taken is an isolated delivery: nothing else is given until it is done."""


class Promoted(NamedTuple):
    """What was left when due messages were made ready for others."""

    next_due_ms: int
    """Until the next delayed message is due; -1 when none is."""
    left: bool
    """Whether messages are ready, and may be taken."""


# What a consumer holds when it reserves: an isolated delivery is made to one that is alone. Who
# is BUSY has waited for long to be alone, in vain, and goes on.
BUSY, HOLDING, IDLE, ALONE = -1, 0, 1, 2

# What one reserve brings at most, in bytes of envelopes: but one message whatever its size.
# So a reply is short, and a consumer without a prefetch limit holds little beforehand.
RESERVED_BYTES = 4 << 20


@dataclass(slots=True, unsafe_hash=True)
class Publication:
    """One message on its way into one queue."""

    queue: str
    tag: str
    envelope: bytes
    rank: int
    publisher: str
    number: int = 0
    """The publisher's number in this queue; 0 when it will never be retried."""
    low_water: int = 0
    """Every number below it is settled: refused as a duplicate if it comes late."""
    delay_ms: int = 0
    ttl_ms: int = -1
    """-1: none."""
    exchange: str = ""
    """What routed it; "" for the anonymous exchange, which creates a queue at need."""
    version: bytes = b""
    """Of the exchange's bindings when the route was found; b"" for the anonymous one."""
    moved: bool = False
    """Whether the number is that of a move: it is remembered for as long as moves may take."""
    create: bool = True
    """Whether the anonymous exchange creates a queue for it that is not there."""


# What became of one publication. CREATED: stored, and the queue with it; DUPLICATE: was
# stored by an earlier try; STALE: the bindings have changed, nothing was stored; FULL:
# the queue is at its limit and rejects, the message was not stored; CLOSED: nor was it, because
# it is a partition that takes nothing new.
STORED, CREATED, DUPLICATE, NO_QUEUE, STALE, FULL, CLOSED = 1, 2, 0, -1, -2, -3, -4


class Returned(NamedTuple):
    """A message whose delivery failed: back in its queue, or a dead letter."""

    tag: str
    failed: int
    """Failed deliveries, this one included where it was to blame."""
    consumer: str
    """Who held it."""
    envelope: bytes | None
    """Only where it was asked for."""


class Released(NamedTuple):
    """What became of messages that were given back."""

    refused: list[str]
    """Tags whose lease was lost before; nothing was done to them."""
    dead: list[Returned]
    """Messages that a requeue brought to their delivery limit."""


class Lost(NamedTuple):
    """Leases that a renewal found lost, by tag."""

    tags: list[str]
    """All of them: given back, or taken by another consumer, or gone."""
    gone: list[str]
    """Those of them whose message is stored no longer."""
    lease_ms: int
    """What the others were extended by: the queue's own lease goes before what was asked for."""


# Whose a claim is that was asked for: one's own, or another's who has finished.
CLAIMED, FINISHED = -1, 0


class Restored(NamedTuple):
    """What one step of restore_visible did."""

    granted: bool
    more: bool
    retry_ms: int
    """When refused: how long the pass of another consumer still counts."""
    unacked: int
    by_consumer: dict[str, int]
    """How many leases ended, by who held them."""
    restored: list[Returned]
    """Where they were asked for."""
    dead: list[Returned]
    consumers: list[str]
    """Of the queue, living or not."""
    to_route: int
    """Dead letters that the queue's ``x-dead-letter-exchange`` is to get."""


class Duties(NamedTuple):
    """Queues that somebody has to look after, whether or not anybody consumes from them."""

    due: list[str]
    """Nobody has looked at them for a while: messages in them, or they themselves, may expire."""
    more: bool
    """Whether there are more of these: to be asked for at once."""
    dead_letter_routed: list[str]
    """Their dead letters are routed on (``x-dead-letter-exchange``)."""
    new: bool = False
    """Whether the consumer was not in the register: if it was before, it was taken for dead,
    or the broker has lost the register."""


class Layout(NamedTuple):
    """How a queue is divided into partitions."""

    partitions: int
    """So many take messages, from partition 0 on, which has the queue's name."""
    end: int
    """Those from here on hold nothing, or are not there; not less than *partitions*."""
    paused: bool = False
    """Whether it gives nothing out; where it is surveyed, nobody asks for that."""


class Work(NamedTuple):
    """What there is to do in one queue."""

    pass_ms: int
    """0: a step of restore_visible is needed; -1: none is; else the ms that the pass of
    another consumer still counts."""
    expired: bool
    """Messages wait beyond their time to live."""
    idle: bool
    """Its ``x-expires`` may have passed; or it is gone, and may still be bound."""
    layout: Layout | None = None
    """How it is divided into partitions; None: it is not."""
    job_events: bool = False
    """Batches are to be told what became of their jobs."""
    gone: bool = False
    """It does not exist."""


class QueueDeclared(NamedTuple):
    """Answer to a declaration."""

    outcome: Literal["missing", "existed", "created", "differs"]
    messages: int
    consumers: int
    arguments: bytes


class QueueDeleted(NamedTuple):
    """Answer to a deletion."""

    outcome: Literal["deleted", "missing", "not_empty", "in_use", "not_idle"]
    number: int
    """Of messages (deleted, not_empty), of consumers (in_use), of ms to go (not_idle)."""


@dataclass(frozen=True, slots=True)
class ExchangeTable:
    """An exchange as the broker knows it."""

    declaration: bytes | None
    version: bytes | None
    bindings: frozenset[bytes]


class Move(NamedTuple):
    """A message on its way to another queue or broker, which knows it by its number."""

    tag: str
    number: int
    envelope: bytes
    delay_ms: int = 0
    """Until it is due."""
    ttl_ms: int = -1
    """Until it expires; -1: never."""
    failed: int = -1
    """Failed deliveries; -1 when it was never delivered before."""
    dead_letter: DeadLetter | None = None
    """What is known of its death, where it is a dead letter and stays one."""


class Liveness(NamedTuple):
    """What the register says of one consumer."""

    client_id: str
    run_id: str
    queues: tuple[str, ...]
    connected: bool
    """False: its connection is gone; True also where nobody can know."""
    silent_ms: int = 0
    """Since its last heartbeat."""
    ttl_ms: int = 60_000
    """After so long a silence it does not count as living: a few heartbeats."""
    host: str = ""
    pid: int = 0

    @property
    def lapsed(self) -> bool:
        """Whether its heartbeats have stopped."""
        return self.silent_ms >= self.ttl_ms


class Attached(NamedTuple):
    """Who consumes from a queue, living or not."""

    temporary: bool
    """Whether the queue goes by itself (auto_delete, ``x-expires``)."""
    marks: dict[str, str]
    """Consumer -> a word that is another one each time that it begins to consume."""


def ignore_result(_result: object) -> None:
    """Take a result that nobody waits for."""
