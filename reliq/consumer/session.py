"""Session: one process as a consumer of one broker, across reconnects.

Kombu and Celery make a new Connection, transport and channel on every reconnect;
what must survive that lives here: the leases held, the acks not yet confirmed,
the returns that could not be sent, and the background loop. One session per process,
broker and options. Knows the store's contract; nothing of Kombu, nothing of an engine.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..errors import BrokerUnavailable, ReliqError
from ..failover.jitter import Pace, Paces
from ..forks import OwnLock, Part, here, register
from ..integrations.celery import WATCH
from ..routing.redeclare import Topology
from ..routing.routes import Routes
from ..signals import emit_at_the_limit
from ..store.protocol import Store
from ..store.values import Delivery, How, Lease, Released
from . import log_events
from .background import BackgroundLoop
from .running_tasks import Running

if TYPE_CHECKING:
    from ..options import Options

logger = logging.getLogger("reliq")

_ACKED_AT_ONCE = 200

StoreFactory: TypeAlias = Callable[[str], Store]


@dataclass(slots=True)
class Held:
    """A lease as this process knows it."""

    queue: str
    token: str
    since: float
    """When it was taken (this process's monotonic clock)."""
    granted: float
    """When its grant or its last renewal was asked for: it lasts a lease from then at least."""
    lease_s: float
    """How long that is: the queue may have a lease of its own."""
    message: weakref.ref[object] | None = None
    """Set once it was delivered: it is kept while this lives."""
    failed: bool = False
    """Whether the application raised as it was delivered: if it goes back, it is counted."""

    @property
    def how(self) -> How:
        """How it goes back where nobody has said so."""
        return "nacked" if self.failed else "released"


class Carrier(Protocol):
    """What a session needs of a transport."""

    def forget_parent(self) -> None:
        """Drop what belongs to the process that this one was forked from."""

    def read_replies(self) -> None:
        """Read what has come while the application was busy."""

    def end_publishing(self) -> None:
        """Let the broker forget the numbers of what was published, where that is safe."""

    def declare_again(self, queue: str, store: Store) -> bool:
        """Declare and bind over *store* a queue that it has declared; False: not its own."""

    @property
    def asking(self) -> bool:
        """Whether a consumer's reserve is under way that may bring leases."""

    def reserving(self, consumer: str) -> bool:
        """Whether a reserve is under way as this consumer: what it took is not known yet."""


class Session:
    """The leases and acks of this process at one broker. Thread-safe."""

    lock = OwnLock(reentrant=True)

    def __init__(self, key: Hashable, options: Options, factory: StoreFactory, pace: Pace) -> None:
        self.key = key
        self.options = options
        self._factory = factory
        self.pace = pace
        self._carriers: weakref.WeakSet[Carrier] = weakref.WeakSet()
        self.lease_ms = int(options.visibility_timeout * 1000)
        self._begin()

    def _begin(self) -> None:
        host = socket.gethostname().split(".")[0]
        self.id = f"{host}:{os.getpid()}:{os.urandom(4).hex()}"
        self.held: dict[str, Held] = {}
        # Messages whose lease was lost, while somebody works on them.
        self._adrift: dict[str, weakref.ref[object]] = {}
        self.subscriptions: dict[str, list[bool]] = {}
        self._unconfirmed: dict[str, tuple[str, float]] = {}
        self._unsent: set[str] = set()
        self._returns: deque[tuple[str, How, Lease]] = deque()
        # Returns that are being sent: how many calls. They are owed until they are answered.
        self._returning = 0
        # Taken with no_ack, never handed out.
        self._unhanded: deque[Delivery] = deque()
        self._abandoned: deque[str] = deque()
        self._dropped: deque[tuple[str, bool, deque[Delivery]]] = deque()
        self._lost_reserves: set[tuple[str, str]] = set()
        self._detached: set[str] = set()
        # Queues of lost connections that may be consumed again soon, and until when.
        self._lingering: dict[str, float] = {}
        self._numbers = count(1)
        self._expected_until = 0.0
        self._lost = False
        # Since when there may be another server in the place of the one before.
        self.replaced_at = 0.0
        self._began = monotonic()
        self.consumed = False
        """Whether it ever was a consumer: otherwise it only publishes."""
        self.topology = Topology()
        self._spare: Store | None = None
        self.running = Running(self)
        self.background = BackgroundLoop(self)

    def forget_parent(self) -> None:
        """Start anew in a child: it holds nothing and owes nothing. Nothing is sent."""
        self._begin()
        self.pace = Pace()
        for carrier in list(self._carriers):
            carrier.forget_parent()

    # -- connections

    def open_store(self) -> Store:
        """Return a new connection of this session; it connects when it is used."""
        return self._factory(f"{self.id}/{next(self._numbers)}")

    def add(self, carrier: Carrier) -> None:
        """Note a transport that uses this session; it may vanish without leaving."""
        self._carriers.add(carrier)

    def spare_store(self) -> Store:
        """Return a connection for what is settled after its own channel is gone."""
        with self.lock:
            if self._spare is None:
                self._spare = self.open_store()
            return self._spare

    def leave(self, carrier: Carrier, lost: bool = False, elsewhere: bool = False) -> None:
        """Note that a transport is closed; the last one ends the session if nothing is owed.

        After a *lost* connection the consumer stays itself for a while: it is
        expected back. Kombu and Celery pause for seconds between their tries, so what is
        held meanwhile a thread renews as soon as the broker answers. Where it may come
        back *elsewhere*, at another broker, the thread also keeps what is owed here.
        """
        with _registry.lock:
            self._carriers.discard(carrier)
            if lost:
                self.pace.trouble()
                self._expected_until = monotonic() + self.options.visibility_timeout
                self._lost = True
            alone = not self._carriers
        if (lost and self.held) or (elsewhere and alone and not self.idle):
            self.background.start()
        self.maybe_end()

    @property
    def idle(self) -> bool:
        """Whether nothing is held and nothing is owed."""
        return not (
            self.held
            or self._unconfirmed
            or self._returns
            or self._returning
            or self._unhanded
            or self._lost_reserves
        )

    @property
    def in_hand(self) -> bool:
        """Whether a message of this broker may run in this process, or be on its way to it.

        What is owed to the broker does not: what was given back or dropped runs no more, and
        a reserve whose connection is gone brings nothing. If the process dies before the
        broker hears of it, that is a death in company for what the broker believes it had.
        """
        self._note_dropped()
        return bool(self.held or self._adrift) or any(
            carrier.asking for carrier in list(self._carriers)
        )

    @property
    def expected_back(self) -> bool:
        """Whether a connection was lost so lately that another one is likely to follow."""
        return monotonic() < self._expected_until

    @staticmethod
    def is_of_this_process(consumer: str) -> bool:
        """Whether a consumer in the register is a session of this process that goes on."""
        return any(session.id == consumer for session in list(_registry.sessions.values()))

    @property
    def age_s(self) -> float:
        """For how long this process has been a consumer."""
        return monotonic() - self._began

    @property
    def deserted(self) -> bool:
        """Whether no transport uses it, no thread looks after it, and it knows nothing."""
        return not self._carriers and not self.background.threaded and self.topology.is_empty

    def maybe_end(self) -> None:
        """End the session when no transport is open and nothing is owed."""
        with _registry.lock:
            if self._carriers or not self.idle or self.expected_back:
                return
            if _registry.sessions.get(self.key) is self:
                del _registry.sessions[self.key]
        self.background.stop()
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def catch_up(self, store: Store) -> None:
        """Bring a fresh connection up to date; waits. Nothing is requeued by this.

        Sends the acks and returns that an earlier connection could not deliver,
        returns what it had reserved without our learning of it, renews the rest.
        """
        if self._lost:
            self._lost, self.replaced_at = False, store.connected_at
        until = monotonic() + self.options.orphan_grace
        self._lingering = dict.fromkeys(self._lingering, until)
        self.send_owed(store)
        self.background.renew(store, all_of_them=True)
        store.wait_for_replies()

    def send_owed(self, store: Store) -> None:
        """Send what earlier connections could not: acks, returns, lost reserves."""
        with self.lock:
            unsent, self._unsent = self._unsent, set()
            owed: dict[str, list[str]] = {}
            for tag in unsent:
                if tag in self._unconfirmed:
                    owed.setdefault(self._unconfirmed[tag][0], []).append(tag)
        for queue, tags in owed.items():
            for start in range(0, len(tags), _ACKED_AT_ONCE):
                self._post_acks(store, queue, tags[start : start + _ACKED_AT_ONCE])
        self._note_dropped()
        self._return_owed(store)
        self.hand_back(store)
        self._leave_queues(store)
        for lost in list(self._lost_reserves):
            if self._reclaim(store, *lost):
                self._lost_reserves.discard(lost)

    def _leave_queues(self, store: Store) -> None:
        for queue in list(self._detached):
            self._detach(store, queue)
            self._detached.discard(queue)
        now = monotonic()
        for queue, until in list(self._lingering.items()):
            if now >= until:
                if queue not in self.subscriptions:
                    self._detach(store, queue)
                self._lingering.pop(queue, None)

    def _detach(self, store: Store, queue: str) -> None:
        if not store.attach(queue, self.id, len(self.subscriptions.get(queue, ()))):
            self.topology.forget_queue(queue)
            Routes(store).forget_queue(queue)

    def come_back(self, store: Store) -> None:
        """Note anew what this process consumes from: it was taken for dead, and lives.

        It stood still for long, or the broker has lost the register. A queue that went with
        its last consumer, as we seemed to be, is declared and bound again.
        """
        for queue, kinds in list(self.subscriptions.items()):
            if store.attach(queue, self.id, len(kinds)):
                continue
            if any(carrier.declare_again(queue, store) for carrier in list(self._carriers)):
                logger.warning(
                    "queue %r was gone when its consumer came back, and is declared again", queue
                )
                store.attach(queue, self.id, len(kinds))

    @contextmanager
    def _being_returned(self) -> Iterator[None]:
        """Owe what is taken out to be returned until that is done, or is owed again."""
        with self.lock:
            self._returning += 1
        try:
            yield
        finally:
            with self.lock:
                self._returning -= 1

    def _return_owed(self, store: Store) -> None:
        with self._being_returned():
            self._send_returns(store)

    def _send_returns(self, store: Store) -> None:
        with self.lock:
            returns, self._returns = self._returns, deque()
        grouped: dict[tuple[str, How], list[Lease]] = {}
        for queue, how, lease in returns:
            grouped.setdefault((queue, how), []).append(lease)
        try:
            while grouped:
                (queue, how), leases = next(iter(grouped.items()))
                released = store.release(queue, how, leases)
                del grouped[queue, how]
                log_events.at_the_limit(queue, released.dead)
                emit_at_the_limit(store.broker, queue, released.dead, "nacked")
        except ReliqError:
            for (queue, how), leases in grouped.items():
                self._returns.extend((queue, how, lease) for lease in leases)
            raise

    def _reclaim(self, store: Store, queue: str, consumer: str) -> bool:
        """Return what a lost connection reserved and nobody here ever saw.

        What is acked was seen: it may have its lease still, its ack being under way on
        another connection. What a reserve that is under way took will be seen: False, to
        be called again.
        """
        leases = store.leases_of(queue, consumer)
        if any(carrier.reserving(consumer) for carrier in list(self._carriers)):
            return False
        with self.lock:
            unseen = [
                lease
                for lease in leases
                if lease.tag not in self._unconfirmed
                and ((held := self.held.get(lease.tag)) is None or held.token != lease.token)
            ]
        if unseen:
            store.release(queue, "undelivered", unseen)
            logger.info(
                "returned %d messages to %r: their delivery was cut off", len(unseen), queue
            )
        return True

    def read_replies(self) -> None:
        """Read, for transports whose application is busy, what has come meanwhile.

        A reserve's reply that lies unread holds leases that nobody renews.
        """
        for carrier in list(self._carriers):
            carrier.read_replies()

    # -- leases

    def take(self, deliveries: Iterable[Delivery], asked_at: float, lease_ms: int) -> None:
        """Note leases that were granted after they were asked for, who knows how soon."""
        now, lease_s = monotonic(), lease_ms / 1000
        self.background.heed(lease_s)
        with self.lock:
            for delivery in deliveries:
                held = Held(delivery.queue, delivery.token, now, asked_at, lease_s)
                self.held[delivery.tag] = held

    def reserve_lost(self, queue: str, consumer: str) -> None:
        """Note a reserve whose reply was lost: it may have taken messages."""
        self._lost_reserves.add((queue, consumer))

    def ack(self, store: Store, queue: str, tags: Sequence[str]) -> None:
        """Finish messages: written to the socket at once, confirmed later.

        Where the connection is gone the ack is kept and goes out over the next
        one. Never waits; raises BrokerTimeout when earlier acks have had no
        answer for ``socket_timeout``.
        """
        now = monotonic()
        with self.lock:
            for tag in tags:
                self._settled(tag)
                self._unconfirmed[tag] = (queue, now)
        try:
            store.check()
        except BrokerUnavailable:
            self._unsent.update(tags)
            raise
        for start in range(0, len(tags), _ACKED_AT_ONCE):
            self._post_acks(store, queue, tags[start : start + _ACKED_AT_ONCE])

    def ack_later(self, queue: str, tags: Sequence[str]) -> None:
        """Finish messages over the next connection: this one is gone."""
        with self.lock:
            for tag in tags:
                self._settled(tag)
                self._unconfirmed[tag] = (queue, monotonic())
                self._unsent.add(tag)

    def resend(self, older_than_s: float) -> None:
        """Send again the acks that have had no answer for so long.

        An application may ack and then work for hours without a look at its
        connection, on which the ack met a dead socket or an empty script cache.
        """
        before = monotonic() - older_than_s
        with self.lock:
            late = [(t, q) for t, (q, since) in self._unconfirmed.items() if since < before]
            for tag, queue in late:
                self._unconfirmed[tag] = (queue, monotonic())
                self._unsent.add(tag)

    def _post_acks(self, store: Store, queue: str, tags: Sequence[str]) -> None:
        # A server that was taken for dead and replaced may still answer on an older
        # connection: what it confirms is sent again.
        trusted = store.connected_at >= self.replaced_at
        try:
            self.running.before_ack(store, queue)
            store.post_ack(queue, tags, partial(self._acked, tags, trusted))
        except BrokerUnavailable as exc:
            self._unsent.update(tags)
            logger.warning("%s; %d acks go out over the next connection", exc, len(tags))

    def _acked(self, tags: Sequence[str], trusted: bool, result: int | ReliqError) -> None:
        if isinstance(result, BrokerUnavailable) or (
            not isinstance(result, ReliqError) and not trusted
        ):
            self._unsent.update(tags)
            return
        if isinstance(result, ReliqError):
            logger.error("an ack failed and the message will be delivered again: %s", result)
        with self.lock:
            for tag in tags:
                self._unconfirmed.pop(tag, None)

    def release(self, store: Store, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back; return what became of them.

        Where the broker cannot be reached the return is kept for the next connection.
        """
        with self._being_returned():
            with self.lock:
                for lease in leases:
                    self._let_go(lease)
            try:
                return store.release(queue, how, leases)
            except BrokerUnavailable:
                self.release_later(queue, how, leases)
                raise

    def release_later(self, queue: str, how: How, leases: Sequence[Lease]) -> None:
        """Give messages back over the next connection."""
        with self.lock:
            for lease in leases:
                self._let_go(lease)
                self._returns.append((queue, how, lease))

    def dead_letter(
        self, store: Store, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        """Give up on messages; return the tags whose lease was lost before."""
        refused = store.dead_letter(queue, reason, error, leases)
        with self.lock:
            for lease in leases:
                self._let_go(lease)
        return refused

    def _settled(self, tag: str) -> None:
        self.held.pop(tag, None)
        if self._adrift:
            self._adrift.pop(tag, None)

    def _let_go(self, lease: Lease) -> None:
        held = self.held.get(lease.tag)
        if held is None or held.token == lease.token:
            self._settled(lease.tag)

    def lease_lost(self, tag: str, token: str) -> Held | None:
        """Note that a lease is not ours any more; None where it was not. Its message may run on."""
        with self.lock:
            held = self.held.get(tag)
            if held is None or held.token != token:
                return None
            del self.held[tag]
            if held.message is not None and held.message() is not None:
                self._adrift[tag] = held.message
            return held

    # -- channels that are gone

    def keep_while_alive(self, tag: str, token: str, message: object) -> None:
        """Keep a lease only while *message*, which was delivered with it, lives.

        An open channel holds its unacked messages, and whoever works on one does.
        Once it is collected unacked, with its channel or after it, it goes back.
        """
        held = self.held.get(tag)
        if held is not None and held.token == token:
            held.message = weakref.ref(message, partial(self._collected, tag, token))

    def delivery_failed(self, tag: str, token: str) -> None:
        """Note that the application raised when it was given a message."""
        held = self.held.get(tag)
        if held is not None and held.token == token:
            held.failed = True

    def failed(self, tag: str) -> bool:
        """Whether the application raised when it was given the message that it holds."""
        held = self.held.get(tag)
        return held is not None and held.failed

    def subscription_dropped(self, queue: str, no_ack: bool, buffer: deque[Delivery]) -> None:
        """Note a subscription that was collected and never cancelled.

        Runs in a destructor: only a deque is touched.
        """
        self._dropped.append((queue, no_ack, buffer))

    def _note_dropped(self) -> None:
        """Owe what destructors have left: they may run at any point of any thread."""
        if self._dropped or self._abandoned:
            with self.lock:
                self._clear_dropped()
                self._release_abandoned()

    def _clear_dropped(self) -> None:
        while self._dropped:
            queue, no_ack, buffer = self._dropped.popleft()
            self.unsubscribe(queue, no_ack)
            self.detach_later(queue)
            self.return_later(buffer, no_ack=no_ack)

    def _collected(self, tag: str, token: str, _ref: weakref.ref[object]) -> None:
        # May run at any point of any thread: only the deque is touched.
        self._abandoned.append(f"{token} {tag}")

    def _release_abandoned(self) -> None:
        while self._abandoned:
            token, _, tag = self._abandoned.popleft().partition(" ")
            adrift = self._adrift.get(tag)
            if adrift is not None and adrift() is None:
                del self._adrift[tag]
            held = self.held.get(tag)
            if held is None or held.token != token:
                continue
            self._returns.append((held.queue, held.how, Lease(tag, token)))
            del self.held[tag]

    def return_later(self, deliveries: Iterable[Delivery], *, no_ack: bool = False) -> None:
        """Give back messages that were reserved but never handed out, when it is possible."""
        if no_ack:
            self._unhanded.extend(deliveries)
            return
        with self.lock:
            for delivery in deliveries:
                lease = Lease(delivery.tag, delivery.token)
                self._let_go(lease)
                self._returns.append((delivery.queue, "undelivered", lease))

    def hand_back(self, store: Store) -> None:
        """Give back what was taken with no_ack and never handed out; once, so it says if it fails.

        Raises ReliqError; what it could not tell the broker of then may be lost.
        """
        with self.lock:
            unhanded, self._unhanded = self._unhanded, deque()
        grouped: dict[str, list[Delivery]] = {}
        for delivery in unhanded:
            grouped.setdefault(delivery.queue, []).append(delivery)
        for queue, deliveries in grouped.items():
            try:
                store.hand_back(queue, deliveries)
            except ReliqError:  # noqa: PERF203 - one of few queues
                logger.error(  # noqa: TRY400 - the error itself is raised
                    "%d messages of %r may be lost: their consumer needs no ack, had not handed "
                    "them out, and could not give them back",
                    len(deliveries),
                    queue,
                )
                raise

    @property
    def owes(self) -> bool:
        """Whether something waits to be sent."""
        return bool(
            self._unsent
            or self._returns
            or self._unhanded
            or self._abandoned
            or self._lost_reserves
            or self._detached
            or self._dropped
            or any(monotonic() >= until for until in list(self._lingering.values()))
        )

    def detach_later(self, queue: str) -> None:
        """Tell the broker over the next connection how many subscriptions *queue* has left."""
        self._detached.add(queue)

    def linger(self, queue: str) -> None:
        """Remain a consumer of *queue* for ``orphan_grace``, or as long after a reconnection.

        The connection was lost, and who comes back consumes from it again: what is sent to
        it meanwhile is not lost, though it may go with its last consumer.
        """
        self._lingering[queue] = monotonic() + self.options.orphan_grace

    def lingers(self, queue: str) -> bool:
        """Whether this process counts as a consumer of *queue* only until it comes back."""
        return queue in self._lingering and queue not in self.subscriptions

    def end_lingering(self, queue: str, store: Store) -> None:
        """Be no consumer of *queue* any more, unless it has come back to it."""
        if self.lingers(queue):
            self._detach(store, queue)
            self._lingering.pop(queue, None)

    @property
    def queues(self) -> list[str]:
        """The queues of which this process is noted as a consumer."""
        return sorted({*self.subscriptions, *self._detached, *self._lingering})

    # -- subscriptions

    def subscribe(self, queue: str, no_ack: bool) -> int:
        """Note that a channel of this process consumes from *queue*; return how many do."""
        with self.lock:
            self.consumed = True
            kinds = self.subscriptions.setdefault(queue, [])
            kinds.append(no_ack)
        self.background.subscribed(queue)
        return len(kinds)

    def unsubscribe(self, queue: str, no_ack: bool) -> int:
        """Note that it does so no longer; return how many subscriptions are left."""
        with self.lock:
            kinds = self.subscriptions.get(queue, [])
            if no_ack in kinds:
                kinds.remove(no_ack)
            if not kinds:
                self.subscriptions.pop(queue, None)
            return len(kinds)

    def end_publishing(self) -> None:
        """Have the broker forget the numbers of what this process has published."""
        for carrier in list(self._carriers):
            carrier.end_publishing()

    def finish(self) -> None:
        """Return, at exit, what this process still holds; waits, but not for long."""
        self.end_publishing()
        self.background.stop()
        with self.lock:
            left = list(self.held.items())
            self.held.clear()
        for tag, held in left:
            self._returns.append((held.queue, held.how, Lease(tag, held.token)))
        if not (self.owes or self._unconfirmed):
            return
        store = self.open_store()
        try:
            self._unsent.update(self._unconfirmed)
            self._detached.update(self.queues)
            self.subscriptions.clear()
            self._lingering.clear()
            self.send_owed(store)
            store.wait_for_replies()
            store.forget_consumer(self.id)
        except ReliqError as exc:
            logger.warning("%d messages return when their lease ends: %s", len(left), exc)
        finally:
            store.close()


class _Registry:
    """The sessions of this process."""

    lock = OwnLock(reentrant=True)

    def __init__(self) -> None:
        self.sessions: dict[Hashable, Session] = {}
        self._paces = Paces()
        atexit.register(self._finish_all)
        WATCH.at_child_end = self._end_publishing

    def session_for(
        self, key: Hashable, options: Options, factory: StoreFactory, carrier: Carrier
    ) -> Session:
        """Return the session for *key*, which *carrier* uses until it leaves."""
        self._end_deserted(key)
        with self.lock:
            session = self.sessions.get(key)
            if session is None:
                session = Session(key, options, factory, self._paces.of(key))
                self.sessions[key] = session
            session.add(carrier)
            return session

    def _end_deserted(self, key: Hashable) -> None:
        """End other sessions whose transports vanished without leaving, or do not come back."""
        for session in list(self.sessions.values()):
            if session.key != key and session.deserted:
                session.maybe_end()

    def stop_background_loops(self) -> None:
        """Have no thread while the process forks: the child could inherit a held lock."""
        loops = [session.background for session in list(self.sessions.values())]
        for background in loops:
            background.pause()
        for background in loops:
            background.wait_paused()

    def start_background_loops(self) -> None:
        """Start again those that ran, or that somebody has wanted to start meanwhile."""
        for session in list(self.sessions.values()):
            session.background.resume()

    def forget_parents(self) -> None:
        """Have no session hold anything."""
        for session in list(self.sessions.values()):
            session.forget_parent()

    def _end_publishing(self) -> None:
        here()
        for session in list(self.sessions.values()):
            session.end_publishing()

    def _finish_all(self) -> None:
        here()
        for session in list(self.sessions.values()):
            session.finish()


_registry = _Registry()
register(
    Part(
        "sessions",
        stop=_registry.stop_background_loops,
        start=_registry.start_background_loops,
        forget=_registry.forget_parents,
    )
)


def nothing_in_hand() -> bool:
    """Whether no message of any broker may run in this process, and no reserve is under way."""
    return not any(session.in_hand for session in list(_registry.sessions.values()))


def session_for(
    key: Hashable, options: Options, factory: StoreFactory, carrier: Carrier
) -> Session:
    """Return this process's session for *key*, which *carrier* uses until it leaves."""
    return _registry.session_for(key, options, factory, carrier)
