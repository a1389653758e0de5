"""The contract of an engine: what stands above talks to a broker only through it.

Longer than other files, because it is read as a whole. Its sections are named as the files of
``engines/redis`` that do what they say.

It keeps the invariants of docs/design.md: each method that changes state is one atomic step on
the broker. Deadlines come from the broker's clock.

``post_*`` methods start a step and return; their callback gets the result, or
the ReliqError it ended with, from whichever thread reads the reply. All other
methods wait, and raise ReliqError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from ..errors import NotFound, ReliqError
from .limits import MINUTE_MS
from .scanning import SCANNED_AT_ONCE
from .values import (
    HOLDING,
    Attached,
    Delivery,
    Duties,
    ExchangeTable,
    How,
    Layout,
    Lease,
    Liveness,
    Lost,
    Move,
    Promoted,
    Publication,
    QueueDeclared,
    QueueDeleted,
    Released,
    Reservation,
    Restored,
    Work,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..options import Confirm
    from .history import Snapshot
    from .inspection import (
        AnyPlace,
        BrokerInfo,
        Consumer,
        DeadLetter,
        Finding,
        Measure,
        Node,
        Place,
        QueueStatus,
        Stored,
        Told,
        Whereabouts,
    )
    from .jobs import Batches, JobEvent
    from .scanning import Failure, Located, Looked, Position

T = TypeVar("T")
OnResult: TypeAlias = Callable[[T | ReliqError], None]


def ignore_result(_result: object) -> None:
    """Take a result that nobody waits for."""


class Notifier(Protocol):
    """Waits until a queue may have something to take. A hint, never the message."""

    @property
    def listening(self) -> bool:
        """Whether a wait is under way on the broker."""

    @property
    def queues(self) -> frozenset[str]:
        """The queues of the wait that is under way, or was last."""

    def descriptors(self) -> Mapping[int, object]:
        """Return what becomes readable when a notification comes; see :class:`Store`."""

    def disable_reconnect(self) -> None:
        """Never open the connection anew: an event loop watches its descriptor."""

    def listen(self, queues: Sequence[str], timeout_s: float) -> None:
        """Begin to wait, unless a wait is under way; over nodes, for what is not waited for yet."""

    def take_notification(self) -> str | None:
        """Return a queue whose notification has come, each once; None when there is no more."""

    def receive(self) -> bool:
        """Take what has come without waiting; True when the wait is over."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a notification, for :meth:`wake`, or for *timeout_s*; True when one came."""

    def end_wait(self) -> None:
        """End the wait on the broker, so that it can begin anew for other queues."""

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

    @property
    def batches(self) -> Batches:
        """The batches of jobs at this broker."""

    # -- the connection

    @property
    def notifier(self) -> Notifier:
        """The second half of the connection, on which a consumer waits."""

    @property
    def epoch(self) -> int:
        """Grows each time the connection is opened anew."""

    @property
    def registered_by(self) -> object:
        """The connection by which the register knows this store: another, where it is another."""

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

    has_nodes: bool
    """Whether the broker is several nodes, of which one may be lost while the others go on. Its
    :meth:`descriptors` change then, and a step that was posted to one may take its time."""

    def descriptors(self) -> Mapping[int, object]:
        """Return the descriptors to watch for replies, each with what it belongs to.

        Where that is another object, it is another connection with the same number. Raises
        BrokerUnavailable where there is none, and none can be opened.
        """

    def disable_reconnect(self) -> None:
        """Never open the connection anew: an event loop watches its descriptor."""

    def receive(self) -> None:
        """Read replies that have come, without waiting, and run their callbacks."""

    def patience(self, seconds: float) -> AbstractContextManager[None]:
        """Let the thread, in the block, wait no longer than that for one of several nodes.

        What it asks raises BrokerTimeout then. Without nodes it means nothing.
        """

    def wait_for_replies(self, timeout_s: float = inf) -> None:
        """Wait for the replies of all that was posted; at most *timeout_s*."""

    def check(self) -> None:
        """Raise BrokerTimeout if a posted step has had no answer within socket_timeout."""

    @property
    def waiting(self) -> bool:
        """Whether something posted has no answer yet."""

    def probe(self, *, whole: bool = False) -> None:
        """Raise ReliqError unless the broker answers and accepts a write now.

        Of several nodes one is enough; *whole*: all have to.
        """

    def server(self) -> tuple[str, str]:
        """Return (this connection's client id, the server's run id)."""

    def end_wait(self) -> None:
        """End the notifier's wait, so that it can begin anew for other queues."""

    # -- publishing

    def publish(self, publications: Sequence[Publication]) -> list[int]:
        """Store *publications*; return what became of each.

        All go out in one round trip; neighbours of one publisher for the same queue, by
        the same route, are stored in one atomic step of up to some hundred.
        """

    def post_publish(
        self, publications: Sequence[Publication], on_result: OnResult[list[int]]
    ) -> None:
        """Post what :meth:`publish` sends."""

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

        "replicated": on so many replicas; "fsynced": on the broker's disk. Raises NotConfirmed
        after *timeout_ms*. It holds for DUPLICATEs too: what an earlier try has stored, over
        whatever connection, is waited for.
        """

    # -- consuming

    def reserve(
        self, queue: str, n: int, lease_ms: int, no_ack: bool, company: int = HOLDING
    ) -> Reservation:
        """Take up to *n* messages, 1 at least, under a lease; with *no_ack* they are finished.

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

    def post_promote(self, queue: str, on_result: OnResult[Promoted]) -> None:
        """Make ready what is due, and notify where something is ready: for who cannot take it.

        What has expired is removed before.
        """

    def post_ack(self, queue: str, tags: Sequence[str], on_result: OnResult[int]) -> None:
        """Finish messages, whoever holds their lease. Acking twice is harmless."""

    def hand_back(self, queue: str, deliveries: Sequence[Delivery]) -> int:
        """Store again what was taken with *no_ack* and never handed out; return how many.

        At its old place and not counted, as if it had not been taken. None where the queue
        was deleted. Not to be tried again: whether it was done is not known then.
        """

    def post_expire(self, queue: str, on_result: OnResult[bool]) -> None:
        """Remove messages that wait beyond their time to live, some hundred a step.

        Counted as expired, or kept as dead letters where the queue says so
        (``x-dead-letter-expired``). The result is whether there may be more.
        """

    # -- leases

    def release(self, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back to their old place.

        A requeued one is counted: it may have to wait (``redelivery_backoff``), and at its
        delivery limit it is dead-lettered instead.
        """

    def post_renew(
        self, queue: str, lease_ms: int, leases: Sequence[Lease], on_result: OnResult[Lost]
    ) -> None:
        """Extend leases; the result is what was lost of them."""

    def post_end_leases(
        self, queue: str, leases: Sequence[Lease], on_result: OnResult[list[str]]
    ) -> None:
        """End leases now: the next pass returns their messages.

        The result is the tags that were refused, once for each batch.
        """

    def leases_of(self, queue: str, consumer: str) -> list[Lease]:
        """Return the leases of *consumer*: of one connection, as it takes messages."""

    def leases_of_session(self, queue: str, session: str) -> list[Lease]:
        """Return the leases of *session*: of all its connections, of now and before."""

    # -- restoring and surveying

    def post_restore(
        self,
        queue: str,
        lease_ms: int,
        on_result: OnResult[Restored],
        force: bool = False,
        include_messages: bool = False,
    ) -> None:
        """Return messages whose lease has ended: one step of the mutex-guarded pass.

        With *force* it does not wait its turn: there are leases that were ended just now.
        With *include_messages* the result has each restored message, and the envelopes also of the
        dead; without, how many there were: a hundred thousand come back sooner.
        """

    def post_survey(self, queues: Sequence[str], on_result: OnResult[dict[str, Work]]) -> None:
        """Ask what there is to do in *queues*; the result names those with something.

        Of several nodes it also names those that others than this consumer consume from.
        Changes nothing and is cheap, however many queues and messages: one command for some
        hundred queues where they can be reached by one. Each queue is seen at one instant;
        the result comes once for each command.
        """

    # -- subscriptions

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

    def consumers_of(self, queue: str) -> list[str]:
        """Return the ids of the consumers of *queue*."""

    # -- the register of consumers

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

    def forget_consumer(self, consumer: str) -> None:
        """Remove *consumer* from the register."""

    def consumers(self) -> list[Consumer]:
        """Return every consumer whose heartbeats have not stopped long ago, by id."""

    def liveness(self, consumers: Sequence[str]) -> dict[str, Liveness | None]:
        """Return what is known of *consumers*; None for one that is not in the register."""

    # -- queues

    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Create *queue* with its arguments, or say what there is."""

    def create_queue(self, queue: str) -> None:
        """Make *queue* unless there is one, as a publish does: it has no arguments yet.

        It takes those of its first declaration, whatever they are.
        """

    def list_queue(self, queue: str) -> None:
        """Make a queue that a publish created visible to operators."""

    def delete_queue(
        self, queue: str, *, if_empty: bool = False, if_unused: bool = False, if_idle: bool = False
    ) -> QueueDeleted:
        """Delete *queue* and everything in it, if the conditions hold."""

    def purge(self, queue: str) -> int:
        """Remove what waits in *queue*; return how many messages. Not atomic as a whole."""

    # -- partitions: queues in their own right, named by reliq.message.queue_names

    has_partitions: bool
    """Whether a queue can be divided; False at a spool, which only notes how."""

    partitions: dict[str, int]
    """Of queues that are divided: into how many partitions, as this process was told last."""

    def layout(self, queue: str) -> Layout | None:
        """Return how *queue* is divided; None where there is no such queue."""

    def lay_out(self, queue: str, partitions: int, end: int = 0) -> Layout | None:
        """Divide *queue* into so many *partitions* to publish to (0: as before).

        Atomic. The end of its layout becomes *end* where that is more. None: no such queue.
        """

    def lower_end(self, queue: str, end: int, to: int) -> Layout | None:
        """Note that the partitions from *to* on are gone, where *end* is still the end."""

    def open_partition(self, partition: str, partitions: int, *, closed: bool = False) -> bool:
        """Let a partition take messages, as one of so many; False where there is none.

        *closed*: let it take nothing new, but from who publishes with ``create``. Atomic.
        """

    def remove_drained(self, partition: str) -> bool:
        """Delete a closed partition that holds nothing; whether it is gone.

        Not while it has numbers of publishers, by which a retry would find its message. Atomic.
        It stays listed until :meth:`unbind_queue`.
        """

    def is_away(self, queue: str) -> bool:
        """Whether the node that has *queue* is known not to answer; does not wait."""

    def node_of(self, queue: str) -> str:
        """Return how messages name the node that has *queue*; the broker, where it is one."""

    def queues(self) -> list[str]:
        """Return the names of all queues."""

    def told(self) -> Told:
        """Return the names of the queues that can be read now, and of those that cannot.

        All can, but for those at a server that does not answer, of a broker of several. Raises
        BrokerUnavailable where none can be listed.
        """

    # -- exchanges

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

    def post_exchange_table(self, exchange: str, on_result: OnResult[ExchangeTable]) -> None:
        """Post what :meth:`exchange_table` asks."""

    def bindings_version(self, exchange: str) -> bytes | None:
        """Return the version of the bindings of *exchange*; None where it has none."""

    def post_bindings_version(self, exchange: str, on_result: OnResult[bytes | None]) -> None:
        """Post what :meth:`bindings_version` asks."""

    # -- claims

    def claim(self, name: str, token: str, keep_ms: int, *, finished: bool = False) -> int:
        """Take the claim on *name*, or extend, finish or (0 ms) give up one's own.

        Atomic. Returns CLAIMED when it is, or was, that of *token*; FINISHED when another
        has finished it; else the ms that the claim of another still counts.
        """

    # -- dead letters

    def dead_letter(
        self, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        """Give up on messages; return the tags that were refused."""

    def dead_letters(
        self, queue: str, limit: int, from_ms: int = 0, envelopes: bool = False
    ) -> list[DeadLetter]:
        """Return up to *limit* that died at *from_ms* (server clock) or later, oldest first."""

    def replay(self, queue: str, tags: Sequence[str]) -> list[str]:
        """Put dead letters back into *queue*, uncounted; return the tags that were."""

    def purge_dead(self, queue: str, tags: Sequence[str]) -> int:
        """Remove dead letters for good; return how many."""

    # -- what became of jobs

    def job_events(self, queue: str, limit: int, after: int = 0) -> list[JobEvent]:
        """Return up to *limit* events of jobs of *queue*, in order, whose number is above *after*.

        Each step that makes a job's message a dead letter, removes it, or puts a dead letter
        back, keeps one, but for a deletion of the whole queue. A job's tag says that it is one.
        """

    def forget_job_events(self, queue: str, numbers: Sequence[int]) -> None:
        """Remove events of which the batches have been told; harmless when repeated."""

    # -- moves

    def begin_move(self, queue: str, target: str, tags: Sequence[str]) -> tuple[int, list[Move]]:
        """Give numbers to dead letters that are to be stored elsewhere, or find them again.

        *target* names the destination; a dead letter that is on its way to another one is left
        out. Returns (low, moves): numbers below low are settled. Up to 100 tags a call.
        """

    def move_out(self, queue: str, target: str) -> tuple[int, list[Move]]:
        """Take up to 100 waiting messages out of *queue*, or go on with those taken out before.

        They are unacked, held by the move (under the token "0"), until :meth:`end_move`.
        Returns (low, moves) as :meth:`begin_move`; no moves when nothing waits any more.
        """

    def accept(self, queue: str, source: str, low_water: int, moves: Sequence[Move]) -> list[int]:
        """Store messages that come from *source*, each once; return what became of each.

        STORED, DUPLICATE, or NO_QUEUE. A dead letter is stored as one. Atomic.
        """

    def end_move(self, queue: str, tags: Sequence[str]) -> int:
        """Take out what is stored elsewhere now, counted as moved; return how many."""

    def broker_id(self) -> str:
        """Return the name by which other brokers know this one; it is given at the first call."""

    # -- measuring

    def status(self, queue: str) -> QueueStatus | None:
        """Return counts and ledger of *queue* at one instant; None where there is no such queue."""

    def measure(self, queues: Sequence[str]) -> list[Measure]:
        """Return what there is of *queues*, each at one instant; none for one that is gone.

        Cheap: what it costs does not grow with the messages in a queue.
        """

    def whereabouts(self, queue: str, tags: Sequence[str]) -> dict[str, Whereabouts]:
        """Say of each of *tags* whether its message is in *queue*, some hundred at one instant.

        Cheap: what it costs does not grow with the messages in a queue, nor with their size. Of
        a queue that is divided the partition is asked in which it is stored.
        """

    # -- history

    def post_snapshots(
        self, queues: Sequence[str], on_result: OnResult[int], every_ms: int = MINUTE_MS
    ) -> None:
        """Note counts and ledger of *queues* as they are now, each once in *every_ms*.

        Kept for 72 hours (72 times sixty *every_ms*), and deleted with the queue. Not of a queue
        that goes by itself (auto_delete, ``x-expires``). The result is in how many ms the next one
        is due; it comes once for each command.
        """

    def history(
        self, queue: str, since_ms: int, now_ms: int, every_ms: int = MINUTE_MS
    ) -> list[Snapshot]:
        """Return the snapshots of *queue* from *since_ms* to *now_ms* (broker's clock), in order.

        One for each *every_ms* in which somebody consumed from the queue; none where there is no
        such queue.
        """

    # -- operators

    def now_ms(self) -> int:
        """Return the broker's time, in ms since the epoch."""

    def pause(self, queue: str, paused: bool) -> bool:
        """Keep *queue* from giving anything out, or let it go on; False: no such queue.

        Atomic. Whoever waits for a queue that goes on is woken.
        """

    def browse(self, queue: str, place: Place, limit: int, skip: int = 0) -> list[Stored]:
        """Return up to *limit* (100) messages of *place* after *skip*, without touching them.

        In the order in which they will leave it: ready as they are given out, delayed
        by when they are due, unacked by the end of their lease. Read at one instant.
        """

    def scan(
        self,
        queue: str,
        place: AnyPlace,
        start: Position,
        limit: int = SCANNED_AT_ONCE,
        *,
        contains: str = "",
        whole_bytes: int = 0,
    ) -> Looked:
        """Look at up to *limit* messages of *place* from *start* on, in one step of a few ms.

        In the order in which they will leave it; dead by when they died. However many are before
        them. At some hundred at most, and a MiB of envelopes; the envelope of a message that is
        larger than that is None. An envelope of more than *whole_bytes* comes without its body.
        contains: only those with this text in their envelope, behind the body.
        """

    def look_up(self, queue: str, tag: str) -> Located | None:
        """Return all that is known of one message, at one instant; None: it is not in *queue*."""

    def count_due(self, queue: str, until_ms: Sequence[int]) -> list[int]:
        """Return how many delayed messages of *queue* are due at each of these times, or before.

        Cheap, however many there are. Not read at one instant.
        """

    def failures(self, queue: str) -> list[Failure]:
        """Return the last failed deliveries of *queue*, a thousand at most, oldest first.

        Also those of messages that have been acked since, or have left it otherwise.
        """

    def configure(self, queue: str, changes: Mapping[str, str | None]) -> dict[str, str] | None:
        """Change what scripts know of the arguments of *queue*; None removes a field.

        Atomic; the declaration that is compared stays as it is. Returns all fields as they
        are now (without *changes*: only looks), None where there is no such queue.
        """

    # -- diagnosis

    def about(self) -> BrokerInfo:
        """Return what the broker says of itself; what this user may not ask is None or ""."""

    def nodes(self) -> list[Node]:
        """Return the servers that the broker consists of, where it is several; else none.

        One that does not answer is among them.
        """

    def diagnose(self) -> list[Finding]:
        """Look at what can be wrong with the broker itself and with this user's rights.

        Slow, up to some seconds, but never blocks others. Each check that was made is in
        the result, also one that found nothing wrong ("ok").
        """


def status_of(store: Store, queue: str) -> QueueStatus:
    """Return the status of *queue*; raises NotFound."""
    status = store.status(queue)
    if status is None:
        raise NotFound(f"no queue {queue!r}")
    return status
