"""The contract of an engine, and the values that cross it.

What stands above (session, transports, admin) talks to a broker only through
these. An engine keeps the invariants of docs/design.md: each method that changes
state is one atomic step on the broker. Deadlines come from the broker's clock.

``post_*`` methods start a step and return; their callback gets the result, or
the ReliqError it ended with, from whichever thread reads the reply. All other
methods wait, and raise ReliqError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from .envelope import Envelope, EnvelopeError, decode, unpack
from .errors import ReliqError
from .salvage import left_out
from .tags import published_ms

if TYPE_CHECKING:
    from .options import Confirm

T = TypeVar("T")
OnResult: TypeAlias = Callable[[T | ReliqError], None]

How: TypeAlias = Literal["buffered", "returned", "requeued"]
"""How a message goes back: it was never given to the application; in order
(redelivered, not counted); or as a failed delivery (counted)."""


class Lease(NamedTuple):
    """The right to work on one message: refused once another consumer has it."""

    tag: str
    token: str


class Delivery(NamedTuple):
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


# What a consumer holds when it reserves: an isolated delivery is made to one that is alone. Who
# is BUSY has waited for long to be alone, in vain, and goes on.
BUSY, HOLDING, IDLE, ALONE = -1, 0, 1, 2


# What one reserve brings at most, in bytes of envelopes: but one message whatever its size.
# So a reply is short, and a consumer without a prefetch limit holds little beforehand.
RESERVED_BYTES = 4 << 20


class Publication(NamedTuple):
    """One message on its way into one queue."""

    queue: str
    tag: str
    envelope: bytes
    rank: int
    publisher: str
    number: int
    """The publisher's number in this queue; 0 when it will never be retried."""
    low: int
    """Every number below it is settled: refused as a duplicate if it comes late."""
    delay_ms: int
    ttl_ms: int
    """-1: none."""
    exchange: str
    """What routed it; "" for the anonymous exchange, which creates a queue at need."""
    version: bytes
    """Of the exchange's bindings when the route was found; b"" for the anonymous one."""
    moved: bool = False
    """Whether the number is that of a move: it is remembered for as long as moves may take."""
    doubt: bool = False
    """Whether it was tried at another broker before, which may have it. An engine that is
    a spool gives it to no consumer: a move takes it there, under the same number."""
    create: bool = True
    """Whether the anonymous exchange creates a queue for it that is not there."""


# What became of one publication. CREATED: stored, and the queue with it; DUPLICATE: was
# stored by an earlier try; STALE: the bindings have changed, nothing was stored; FULL:
# the queue is at its limit and rejects, the message was not stored.
STORED, CREATED, DUPLICATE, NO_QUEUE, STALE, FULL = 1, 2, 0, -1, -2, -3


class Returned(NamedTuple):
    """A message whose delivery failed: back in its queue, or given up on."""

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
    rerouted: list[str]
    """Their dead letters are routed on (``x-dead-letter-exchange``)."""
    new: bool = False
    """Whether the consumer was not in the register: if it was before, it was taken for dead,
    or the broker has lost the register."""


class Work(NamedTuple):
    """What there is to do in one queue."""

    pass_ms: int
    """0: a step of restore_visible is needed; -1: none is; else the ms that the pass of
    another consumer still counts."""
    expired: bool
    """Messages wait beyond their time to live."""
    idle: bool
    """Its ``x-expires`` may have passed; or it is gone, and may still be bound."""


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

    @property
    def declared(self) -> dict[str, Any]:
        """The arguments it was declared with, whether or not an engine has unpacked them."""
        if "" not in self.arguments:
            return dict(self.arguments)
        stored = self.arguments[""]
        try:
            found = unpack(stored) if isinstance(stored, bytes) and stored else {}
        except EnvelopeError:
            found = None
        if isinstance(found, dict):
            return found
        left_out("its broker", "arguments of queues", [self.name])
        return {}


@dataclass(frozen=True, slots=True)
class Measure:
    """What metrics need of a queue, read at one instant."""

    status: QueueStatus
    """The ledger has, beside what the audit compares: redelivered, lapsed (leases that ended
    without their holder), token (leases granted), requeued, replayed, and for each reason
    dead:<reason>."""
    now_ms: int
    """The broker's time."""
    ready: dict[int, int]
    """Ready messages by rank, for the ranks that have any."""
    oldest_ms: int | None
    """When the oldest that is first at its rank was published, by its publisher's clock;
    None where nothing is ready."""
    due: int
    """Delayed messages that are due: the next consumer that asks will find them ready."""


def ignore_result(_result: object) -> None:
    """Take a result that nobody waits for."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up on."""

    tag: str
    died_ms: int
    reason: str
    count: int
    """Failed deliveries."""
    consumer: str
    error: str
    envelope: bytes | None = field(default=None, repr=False)
    """Only where it was asked for."""

    @property
    def published_ms(self) -> int:
        """When it was published, by its publisher's clock."""
        return published_ms(self.tag)

    @property
    def message(self) -> Envelope | None:
        """What is in it; None where that was not asked for or cannot be read."""
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
        found = message.headers.get("id") or message.properties.get("message_id")
        return found if isinstance(found, str) else None


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
    letter: DeadLetter | None = None
    """What is known of its death, where it is a dead letter and stays one."""
    origin: tuple[str, int] | None = None
    """Of a message in doubt (see Publication): its publisher and its number there."""


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


@dataclass(frozen=True, slots=True)
class Consumer:
    """A process that consumes, as the register knows it. Times are the broker's, in ms."""

    id: str
    host: str
    pid: int
    version: str
    """Of reliq."""
    queues: tuple[str, ...]
    started_ms: int
    """When the process began to consume from this broker."""
    seen_ms: int
    """Its last heartbeat: one in 20 s, with the default visibility_timeout."""
    held: int
    """Messages that it held at its last heartbeat."""
    connected: bool
    """False: its connection is gone, and it will soon be; True also where the Redis user
    may not look."""
    pool: str = ""
    """Of a Celery worker: prefork, thread, gevent, solo ...; "" for a consumer without Celery."""
    options: dict[str, Any] = field(default_factory=dict)
    """Those of its transport options that all consumers of a queue should share."""
    running: dict[str, int] = field(default_factory=dict)
    """Of a Celery worker: queue -> tasks that run and are acknowledged, as they are by default
    when they begin; it is told within a second."""
    processes: int = 0
    """Of a Celery worker: how many tasks it runs at a time."""


Place: TypeAlias = Literal["ready", "delayed", "unacked"]


class Stored(NamedTuple):
    """A message where it is, as an operator sees it; nothing about it was changed."""

    tag: str
    envelope: bytes | None
    failed: int
    """Failed deliveries; -1 when it was never delivered before."""
    at_ms: int
    """delayed: when it is due; unacked: when its lease ends; broker's clock. Else 0."""
    consumer: str
    """unacked: who holds it, or "move/..." where it is on its way elsewhere. Else ""."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """What a broker says of itself."""

    broker: str
    """Its URL, without a password."""
    engine: str
    """What stores the messages: redis, valkey, sqlite ..."""
    version: str
    role: str
    """master or replica; "" where there is no such thing."""
    uptime_s: int | None
    memory_bytes: int | None
    """That its data takes: in memory, or on disk for an engine that has it there."""
    memory_limit_bytes: int | None
    """None: no limit of its own."""
    persistence: str
    """In a few words: what a crash of the broker forgets depends on it."""
    clients: int | None


Severity: TypeAlias = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and what to do about it."""

    check: str
    """What was looked at, in one word or two: maxmemory-policy, clock ..."""
    severity: Severity
    """error: messages can be lost, or nothing works; warning: it will hurt some day."""
    message: str
    remedy: str = ""


class Doorbell(Protocol):
    """Waits until a queue may have something to take. A hint, never the message."""

    @property
    def listening(self) -> bool:
        """Whether a wait is under way on the broker."""

    @property
    def queues(self) -> frozenset[str]:
        """The queues of the wait that is under way, or was last."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the bell rings."""

    def pin(self) -> None:
        """Never open the connection anew: an event loop watches its descriptor."""

    def listen(self, queues: Sequence[str], timeout_s: float) -> None:
        """Begin to wait, unless a wait is under way."""

    def take_ring(self) -> str | None:
        """Return the queue that ended the last wait, once; None when its time was up."""

    def receive(self) -> bool:
        """Take what has come without waiting; True when the wait is over."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for the bell, for :meth:`wake`, or for *timeout_s*; True when it rang."""

    def wake(self) -> None:
        """End another thread's :meth:`wait` now."""

    def check(self) -> None:
        """Raise BrokerTimeout if the broker has let the wait run out unanswered."""

    def close(self) -> None:
        """End the wait without ceremony."""


class Store(Protocol):
    """One connection to one broker."""

    consumer: str
    """Who this connection takes messages as: the session's id and a number of its own."""
    broker: str
    """The name of the broker in messages and signals; nothing in it is secret."""
    keeps_long: bool
    """Whether numbers of publishes are kept for a day from the first one on. Otherwise for an
    hour until the connection has been used for a quarter of one. Defaults to False."""

    # -- the connection

    @property
    def doorbell(self) -> Doorbell:
        """The second half of the connection, on which a consumer waits."""

    @property
    def epoch(self) -> int:
        """Grows each time the connection is opened anew."""

    @property
    def connected_at(self) -> float:
        """When it began to be opened (this process's monotonic clock)."""

    @property
    def alive(self) -> bool:
        """Whether the connection is open and has not failed."""

    def connect(self) -> None:
        """Open the connection unless it is open; raises BrokerUnavailable."""

    def require_writable(self) -> None:
        """Raise BrokerUnavailable unless the broker takes writes now."""

    def close(self) -> None:
        """Close for good; what was posted gets a BrokerUnavailable."""

    def fileno(self) -> int:
        """Return the descriptor to watch for replies."""

    def pin(self) -> None:
        """Never open the connection anew: an event loop watches its descriptor."""

    def receive(self) -> None:
        """Read replies that have come, without waiting, and run their callbacks."""

    def settle(self) -> None:
        """Wait for the replies of all that was posted."""

    def check(self) -> None:
        """Raise BrokerTimeout if a posted step has had no answer within socket_timeout."""

    @property
    def waiting(self) -> bool:
        """Whether something posted has no answer yet."""

    def probe(self) -> None:
        """Raise ReliqError unless the broker answers and accepts a write now."""

    def server(self) -> tuple[str, str]:
        """Return (this connection's client id, the server's run id)."""

    # -- publishing

    def publish(self, publications: Sequence[Publication]) -> list[int]:
        """Store *publications*; return what became of each.

        All go out in one round trip; neighbours of one publisher for the same queue, by
        the same route, are stored in one atomic step of up to some hundred.
        """

    def forget_publishers(self, finished: Callable[[str], bool]) -> None:
        """Forget the numbers of publishers that have *finished*, as far as stored by this.

        Such a one will try nothing again, and nothing of it is under way. Not waited for.
        """

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused where the broker can never give this confirmation.

        Asked before anything is stored; what was learned is kept while the
        connection lives.
        """

    def confirm(
        self,
        level: Confirm,
        replicas: int,
        timeout_ms: int,
        publications: Sequence[Publication],
    ) -> None:
        """Return when what :meth:`publish` has stored is as safe as *level* says.

        "replicated": on so many replicas; "fsynced": on the broker's disk; an
        engine that has no such step between storing and being as safe as it can
        be returns at once, and its :meth:`require_confirm` refuses what it can never do.
        Raises NotConfirmed after *timeout_ms*. It holds for DUPLICATEs too: what
        an earlier try has stored, over whatever connection, is waited for.
        """

    def post_publish(
        self, publications: Sequence[Publication], on_result: OnResult[list[int]]
    ) -> None:
        """Post what :meth:`publish` sends."""

    def bindings_version(self, exchange: str) -> bytes | None:
        """Return the version of the bindings of *exchange*; None where it has none."""

    def post_bindings_version(self, exchange: str, on_result: OnResult[bytes | None]) -> None:
        """Post what :meth:`bindings_version` asks."""

    def list_queue(self, queue: str) -> None:
        """Make a queue that a publish created visible to operators."""

    # -- taking

    def reserve(
        self, queue: str, n: int, lease_ms: int, no_ack: bool, company: int = HOLDING
    ) -> Reservation:
        """Take up to *n* messages under a lease; with *no_ack* they are finished at once.

        No more than RESERVED_BYTES of them, but one whatever its size; the rest is *left*.
        A message whose next failure is its last goes to who is ALONE: holds nothing, of any
        queue, and asks for nothing else meanwhile. Who is HOLDING or IDLE claims it; who is
        BUSY leaves it to others.
        """

    def post_reserve(
        self,
        queue: str,
        n: int,
        lease_ms: int,
        no_ack: bool,
        on_result: OnResult[Reservation],
        company: int = HOLDING,
    ) -> None:
        """Post what :meth:`reserve` sends."""

    def post_ack(self, queue: str, tags: Sequence[str], on_result: OnResult[int]) -> None:
        """Finish messages, whoever holds their lease. Acking twice is harmless."""

    def hand_back(self, queue: str, deliveries: Sequence[Delivery]) -> int:
        """Store again what was taken with *no_ack* and never handed out; return how many.

        At its old place and not counted, as if it had not been taken. None where the queue
        was deleted. Not to be tried again: whether it was done is not known then.
        """

    def release(self, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back to their old place.

        A requeued one is counted: it may have to wait (``redelivery_backoff``), and at its
        delivery limit it is dead-lettered instead.
        """

    def dead_letter(
        self, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        """Give up on messages; return the tags that were refused."""

    def post_renew(
        self, queue: str, lease_ms: int, leases: Sequence[Lease], on_result: OnResult[Lost]
    ) -> None:
        """Extend leases (0 ms: end them now); the result is what was lost of them."""

    def post_restore(
        self,
        queue: str,
        lease_ms: int,
        on_result: OnResult[Restored],
        hurry: bool = False,
        told: bool = False,
    ) -> None:
        """Return messages whose lease has ended: one step of the mutex-guarded pass.

        With *hurry* it does not wait its turn: there are leases that were ended just now.
        With *told* the result has each restored message, and the envelopes also of the
        dead; without, how many there were: a hundred thousand come back sooner.
        """

    def post_survey(self, queues: Sequence[str], on_result: OnResult[dict[str, Work]]) -> None:
        """Ask what there is to do in *queues*; the result names those with something.

        Changes nothing and is cheap, however many queues and messages: one command for some
        hundred queues where they can be reached by one. Each queue is seen at one instant;
        the result comes once for each command.
        """

    def post_expire(self, queue: str, on_result: OnResult[bool]) -> None:
        """Remove messages that wait beyond their time to live, some hundred a step.

        Counted as expired, or kept as dead letters where the queue says so
        (``x-dead-letter-expired``). The result is whether there may be more.
        """

    def leases_of(self, queue: str, consumer: str) -> list[Lease]:
        """Return the leases of *consumer*; one that ends with "/" stands for all that begin so."""

    def end_wait(self) -> None:
        """End the doorbell's wait, so that it can begin anew for other queues."""

    # -- the register of consumers

    def attach(self, queue: str, consumer: str, subscriptions: int) -> bool:
        """Note how many *subscriptions* a consumer has on *queue*; 0 when it left.

        False when there is no such queue to consume from (nothing was noted), or when the
        last one left and the queue was deleted (auto_delete). A queue that is deleted
        under its consumers has them again when it is made anew.
        """

    def attached(self, queue: str) -> Attached:
        """Return who consumes from *queue*, dead ones that nobody removed included."""

    def drop_consumer(self, queue: str, consumer: str, mark: str, silent_ms: int) -> bool:
        """Take a dead consumer off *queue*, unless it has come back: its mark is another.

        Its last use counts from when it was heard of. False when it was the last and the
        queue was deleted (auto_delete).
        """

    def post_look(self, consumer: str, hold_ms: int, on_result: OnResult[list[str]]) -> None:
        """Ask for the duty to look after all consumers, which one has for *hold_ms*.

        The result is who is in the register, those first who have been silent longest, up
        to some hundred; nobody where the duty is another's.
        """

    def post_heartbeat(
        self,
        consumer: str,
        ttl_ms: int,
        again_ms: int,
        record: dict[str, str],
        on_result: OnResult[Duties],
    ) -> None:
        """Say that *consumer* lives; the result is what queues need of whoever lives.

        A queue that is named as due is so again, to whoever asks first, *again_ms* later;
        later than that where there are very many queues.
        """

    def post_running(
        self, consumer: str, number: int, running: Mapping[str, int], on_result: OnResult[bool]
    ) -> None:
        """Say which tasks a worker runs that are acknowledged: queue -> how many.

        What was said with a higher *number* stays. The result is False where the consumer is
        not in the register: then nothing was said.
        """

    def consumers_of(self, queue: str) -> list[str]:
        """Return the ids of the consumers of *queue*."""

    def forget_consumer(self, consumer: str) -> None:
        """Remove *consumer* from the register."""

    def consumers(self) -> list[Consumer]:
        """Return every consumer whose heartbeats have not stopped long ago, by id."""

    def liveness(self, consumers: Sequence[str]) -> dict[str, Liveness | None]:
        """Return what is known of *consumers*; None for one that is not in the register."""

    # -- topology

    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Create *queue* with its arguments, or say what there is."""

    def create_queue(self, queue: str) -> None:
        """Make *queue* unless there is one, as a publish does: it has no arguments yet.

        It takes those of its first declaration, whatever they are.
        """

    def delete_queue(
        self, queue: str, *, if_empty: bool = False, if_unused: bool = False, if_idle: bool = False
    ) -> QueueDeleted:
        """Delete *queue* and everything in it, if the conditions hold."""

    def purge(self, queue: str) -> int:
        """Remove what waits in *queue*; return how many messages. Not atomic as a whole."""

    def queues(self) -> list[str]:
        """Return the names of all queues."""

    def declare_exchange(self, exchange: str, declaration: bytes) -> bytes:
        """Store the declaration unless there is one; return what is stored."""

    def delete_exchange(self, exchange: str, *, if_unbound: bool = False) -> None:
        """Delete *exchange* and its bindings; with *if_unbound* only where it has none."""

    def exchanges(self) -> list[str]:
        """Return the names of all declared exchanges."""

    def bind(
        self,
        exchange: str,
        bound: bool,
        bindings: Sequence[bytes],
        queue: str = "",
        *,
        present: bool = False,
    ) -> int:
        """Add (*bound*) or remove bindings, and change the version of the table.

        Returns how many the exchange has now. They are those of *queue*, where it is
        given: :meth:`unbind_queue` will find them. With *present* nothing is bound where
        there is no such queue, NO_QUEUE is returned, and one that is deleted meanwhile
        leaves nothing.
        """

    def unbind_queue(self, queue: str) -> dict[str, bytes | None]:
        """Remove the bindings of a queue that is gone, however many exchanges there are.

        Returns the exchanges that have none left, with their declarations. Not atomic with
        the deletion of the queue: one that was made anew meanwhile keeps its bindings.
        """

    def exchange_table(self, exchange: str) -> ExchangeTable:
        """Return declaration, bindings and version of *exchange*."""

    # -- claims

    def claim(self, name: str, token: str, keep_ms: int, *, finished: bool = False) -> int:
        """Take the claim on *name*, or extend, finish or (0 ms) give up one's own.

        Atomic. Returns CLAIMED when it is, or was, that of *token*; FINISHED when another
        has finished it; else the ms that the claim of another still counts.
        """

    # -- operators

    def now_ms(self) -> int:
        """Return the broker's time, in ms since the epoch."""

    def status(self, queue: str) -> QueueStatus | None:
        """Return counts and ledger of *queue* at one instant; None where there is no such queue."""

    def measure(self, queues: Sequence[str]) -> list[Measure]:
        """Return what there is of *queues*, each at one instant; none for one that is gone.

        Cheap: what it costs does not grow with the messages in a queue.
        """

    def pause(self, queue: str, paused: bool) -> bool:
        """Keep *queue* from giving anything out, or let it go on; False: no such queue.

        Atomic. Whoever waits for a queue that goes on is woken.
        """

    def dead_letters(
        self, queue: str, limit: int, from_ms: int = 0, envelopes: bool = False
    ) -> list[DeadLetter]:
        """Return up to *limit* that died at *from_ms* (server clock) or later, oldest first."""

    def replay(self, queue: str, tags: Sequence[str]) -> list[str]:
        """Put dead letters back into *queue*, uncounted; return the tags that were."""

    def purge_dead(self, queue: str, tags: Sequence[str]) -> int:
        """Remove dead letters for good; return how many."""

    def begin_move(self, queue: str, target: str, tags: Sequence[str]) -> tuple[int, list[Move]]:
        """Give numbers to dead letters that are to be stored elsewhere, or find them again.

        *target* names the destination; a letter that is on its way to another one is left
        out. Returns (low, moves): numbers below low are settled. Up to 100 tags a call.
        """

    def move_out(self, queue: str, target: str) -> tuple[int, list[Move]]:
        """Take up to 100 waiting messages out of *queue*, or go on with those taken out before.

        They are unacked, held by the move (under the token "0"), until :meth:`end_move`.
        Returns (low, moves) as :meth:`begin_move`; no moves when nothing waits any more.
        """

    def accept(self, queue: str, source: str, low: int, moves: Sequence[Move]) -> list[int]:
        """Store messages that come from *source*, each once; return what became of each.

        STORED, DUPLICATE, or NO_QUEUE. A dead letter is stored as one. Atomic.
        """

    def broker_id(self) -> str:
        """Return the name by which other brokers know this one; it is given at the first call."""

    def end_move(self, queue: str, tags: Sequence[str]) -> int:
        """Take out what is stored elsewhere now, counted as moved; return how many."""

    def browse(self, queue: str, place: Place, limit: int, skip: int = 0) -> list[Stored]:
        """Return up to *limit* (100) messages of *place* after *skip*, without touching them.

        In the order in which they will leave it: ready as they are given out, delayed
        by when they are due, unacked by the end of their lease. Read at one instant.
        """

    def oldest_ms(self, queue: str) -> int | None:
        """Return when the oldest ready message was published, by its publisher's clock.

        That at the head of its priority: one that went back to its place counts from its
        publication too. None where nothing is ready.
        """

    def configure(self, queue: str, changes: Mapping[str, str | None]) -> dict[str, str] | None:
        """Change what scripts know of the arguments of *queue*; None removes a field.

        Atomic; the declaration that is compared stays as it is. Returns all fields as they
        are now (without *changes*: only looks), None where there is no such queue.
        """

    def about(self) -> BrokerInfo:
        """Return what the broker says of itself; what this user may not ask is None or ""."""

    def diagnose(self) -> list[Finding]:
        """Look at what can be wrong with the broker itself and with this user's rights.

        Slow, up to some seconds, but never blocks others. Each check that was made is in
        the result, also one that found nothing wrong ("ok").
        """
