"""Outbox: the pending reports of this process to one broker, kept until it confirms them.

These are unconfirmed acks, messages to return, undelivered messages reserved with no_ack, and
reserves whose reply was lost. Any connection can send them: the next one sends the reports that
failed over the one before (:meth:`Outbox.flush`). One lock guards them all, so that a report that
changes its kind is never overlooked.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerTimeout, BrokerUnavailable, ReliqError, logger
from ..forks import OwnLock
from ..signals import emit_at_the_limit
from ..values.limits import BATCH, chunks
from ..values.values import Delivery, How, Lease, Released
from .host import HOST
from .leases import log_at_the_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from weakref import WeakSet

    from ..values.protocol import Attempt, Store
    from .heartbeat import RunningTasks
    from .leases import Leases
    from .registration import AttachedTransport


@dataclass(eq=False)
class Outbox:
    """The pending reports of one session to its broker. Thread-safe."""

    _leases: Leases
    _transports: WeakSet[AttachedTransport]
    _running: RunningTasks

    lock = OwnLock()
    """Guards the pending reports. Taken before the lock of the leases: a message moves here in
    one step, and is recorded here before its lease is dropped there."""

    def begin(self) -> None:
        """Start empty, also in a child: inherited reports belong to the parent."""
        self.unconfirmed: dict[str, tuple[str, float]] = {}
        """Unconfirmed acks: queue and time by tag; read-only for other modules."""
        self._unsent: set[str] = set()
        # Acks that the broker does not run now. Sent again at the next tick, or connection.
        self._refused: set[str] = set()
        self._returns: deque[tuple[str, How, Lease]] = deque()
        # Reserved with no_ack, not delivered.
        self._unhanded: deque[Delivery] = deque()
        self._lost_reserves: set[tuple[str, str]] = set()
        # Number of returns in progress. Their messages are pending until the reply.
        self._returning = 0
        self.replaced_at = 0.0
        """Time from which another server may have replaced the previous one."""

    @property
    def is_empty(self) -> bool:
        """Whether no report is pending."""
        with self.lock:
            return not (
                self.unconfirmed
                or self._returns
                or self._returning
                or self._unhanded
                or self._lost_reserves
            )

    @property
    def has_unsent(self) -> bool:
        """Whether unsent reports are pending."""
        return bool(self._unsent or self._returns or self._unhanded or self._lost_reserves)

    def trusts(self, store: Store) -> bool:
        """Whether *store* certainly speaks to the current broker, not to a replaced server.

        Over a cluster, the store checks this itself for each node.
        """
        return store.has_nodes or store.connected_at >= self.replaced_at

    def flush(self, store: Store, attempt: Attempt) -> None:
        """Send the pending reports of earlier connections: acks, returns, lost reserves.

        Posts the acks and waits for the rest, in one *attempt* for each queue. Raises ReliqError;
        unsent reports remain pending.
        """
        with self.lock:
            unsent, self._unsent = self._unsent, set()
            owed: dict[str, list[str]] = {}
            for tag in unsent:
                known = self.unconfirmed.get(tag)
                if known is not None:
                    owed.setdefault(known[0], []).append(tag)
        for queue, tags in owed.items():
            with suppress(BrokerTimeout):  # they are recorded as unsent again
                self.send_acks(store, queue, tags)
        with self._being_returned():
            self._send_returns(store, attempt)
        self.hand_back(store, attempt)
        for lost in list(self._lost_reserves):
            with attempt:
                if self._reclaim(store, *lost):
                    self._lost_reserves.discard(lost)

    def ack(self, store: Store, queue: str, tags: Sequence[str]) -> None:
        """Ack messages: written to the socket at once, confirmed later.

        If the connection is lost, the ack is kept and sent over the next one. Never waits. Raises
        BrokerTimeout if earlier acks have had no reply for ``socket_timeout``.
        """
        self.owe_acks(queue, tags)
        self.send_acks(store, queue, tags)

    def owe_acks(self, queue: str, tags: Sequence[str]) -> None:
        """Record acks that :meth:`send_acks` sends shortly.

        Drops the leases. The end of the message objects then returns nothing.
        """
        now = monotonic()
        with self.lock:
            for tag in tags:
                self.unconfirmed[tag] = (queue, now)
            late = self._leases.settle(tags, now)
        for tag in late:
            logger.warning(
                "lease lost: message %s of %r was finished after its lease had ended, and may have "
                "run elsewhere too; this process did not renew it in time: raise "
                "visibility_timeout if processes freeze for longer, and prevent a second run "
                "with reliq.once",
                tag,
                queue,
            )

    def send_acks(self, store: Store, queue: str, tags: Sequence[str]) -> None:
        """Write recorded acks to the socket; raises the errors of :meth:`ack`."""
        # A replaced server may still reply on an older connection: its confirmed acks are resent.
        trusted = not self.replaced_at or self.trusts(store)
        for chunk in chunks(tags) if tags[BATCH:] else (tags,):
            try:
                if store.has_nodes:  # a post checks only its own node for late replies
                    store.check()
                if HOST.worked:
                    self._running.before_ack(store, queue)
                marked = (*chunk, "") if queue in self._leases.limited else chunk
                store.post_ack(queue, marked, partial(self._acked, chunk, trusted))
            except BrokerTimeout:  # noqa: PERF203 - one of few chunks
                self._unsent.update(tags)
                raise
            except BrokerUnavailable as exc:
                self._unsent.update(chunk)
                logger.warning("%s; %d acks are sent over the next connection", exc, len(chunk))

    def ack_later(self, queue: str, tags: Sequence[str]) -> None:
        """Ack messages over the next connection, as this one is lost."""
        with self.lock:
            self.owe_acks(queue, tags)
            self._unsent.update(tags)

    def resend(self, older_than_s: float) -> None:
        """Mark acks without a reply for *older_than_s* to be sent again.

        An application may ack and then work for hours without reading its connection. A dead
        socket or an empty script cache may have stopped the ack.
        """
        now = monotonic()
        with self.lock:
            refused, self._refused = self._refused, set()
            self._unsent |= refused
            for tag, (queue, since) in self.unconfirmed.copy().items():
                if since < now - older_than_s and tag in self.unconfirmed:
                    self.unconfirmed[tag] = (queue, now)
                    self._unsent.add(tag)

    def resend_all(self) -> None:
        """Mark all acks without a reply to be sent again: no reply will be read."""
        self._unsent.update(self.unconfirmed)

    def _acked(self, tags: Sequence[str], trusted: bool, result: int | ReliqError) -> None:
        if type(result) is not int or not trusted:
            if not isinstance(result, ReliqError) or result.passes:
                again = isinstance(result, ReliqError) and result.reply
                (self._refused if again else self._unsent).update(tags)
                return
            logger.error("an ack failed and the message will be delivered again: %s", result)
        # No lock: each operation on the dict is atomic, and iterations use a copy.
        for tag in tags:
            self.unconfirmed.pop(tag, None)

    def release(
        self, store: Store, queue: str, how: How, leases: Sequence[Lease], error: str = "nacked"
    ) -> Released:
        """Return messages, over the next connection if necessary; return the result.

        *error*: of messages that are dead-lettered at their delivery limit now.
        """
        with self._being_returned():
            self._leases.let_go(leases)
            try:
                return store.release(queue, how, leases, error)
            except ReliqError as exc:
                if exc.passes:
                    self.release_later(queue, how, leases)
                raise

    def release_later(self, queue: str, how: How, leases: Sequence[Lease]) -> None:
        """Return messages over the next connection."""
        with self.lock:
            self._returns.extend((queue, how, lease) for lease in leases)
            self._leases.let_go(leases)

    def return_later(self, deliveries: Iterable[Delivery], *, no_ack: bool = False) -> None:
        """Return reserved, undelivered messages at the next opportunity."""
        with self.lock:
            if no_ack:
                # Those of a log have no place in a queue.
                self._unhanded.extend(item for item in deliveries if item.place)
                return
            for delivery in deliveries:
                lease = Lease(delivery.tag, delivery.token)
                self.release_later(delivery.queue, "undelivered", (lease,))

    def return_abandoned(self) -> None:
        """Record the return of messages that were collected unacked."""
        for queue, how, lease in self._leases.abandoned():
            self.release_later(queue, how, (lease,))

    def return_all(self) -> int:
        """Record the return of all held messages; return their number."""
        left = list(self._leases.all())
        for queue, how, lease in left:
            self.release_later(queue, how, (lease,))
        return len(left)

    def dead_letter(
        self, store: Store, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        """Dead-letter messages; return the tags whose lease was lost before."""
        refused = store.dead_letter(queue, reason, error, leases)
        self._leases.let_go(leases)
        return refused

    @contextmanager
    def _being_returned(self) -> Iterator[None]:
        """Count a return as pending until it is done, or is recorded again."""
        with self.lock:
            self._returning += 1
        try:
            yield
        finally:
            with self.lock:
                self._returning -= 1

    def _send_returns(self, store: Store, attempt: Attempt) -> None:
        with self.lock:
            returns, self._returns = self._returns, deque()
        grouped: dict[tuple[str, How], list[Lease]] = {}
        for queue, how, lease in returns:
            grouped.setdefault((queue, how), []).append(lease)
        try:
            for (queue, how), leases in list(grouped.items()):
                with attempt:
                    released = store.release(queue, how, leases)
                    del grouped[queue, how]
                    log_at_the_limit(queue, released.dead)
                    emit_at_the_limit(store.broker, queue, released.dead, "nacked")
        finally:
            with self.lock:
                for (queue, how), leases in grouped.items():
                    self._returns.extend((queue, how, lease) for lease in leases)

    def hand_back(self, store: Store, attempt: Attempt) -> None:
        """Return undelivered messages that were reserved with no_ack, in a single attempt.

        Logs and raises a ReliqError; the messages of a failed attempt may be lost. An attempt that
        the broker has not run is repeated.
        """
        with self.lock:
            unhanded, self._unhanded = self._unhanded, deque()
        grouped: dict[str, list[Delivery]] = {}
        for delivery in unhanded:
            grouped.setdefault(delivery.queue, []).append(delivery)
        try:
            for queue in list(grouped):
                with attempt:
                    self._hand_back(store, queue, grouped.pop(queue))
        finally:
            for deliveries in grouped.values():
                self._unhanded.extend(deliveries)

    def _hand_back(self, store: Store, queue: str, deliveries: Sequence[Delivery]) -> None:
        try:
            store.hand_back(queue, deliveries)
        except ReliqError as exc:
            if exc.reply and exc.passes:
                self._unhanded.extend(deliveries)
                raise
            logger.error(  # noqa: TRY400 - the error itself is raised
                "%d messages of %r may be lost: their no_ack consumer had not delivered "
                "them, and could not return them",
                len(deliveries),
                queue,
            )
            raise

    def reserve_lost(self, queue: str, consumer: str) -> None:
        """Record a reserve whose reply was lost: it may have taken messages."""
        self._lost_reserves.add((queue, consumer))

    def _reclaim(self, store: Store, queue: str, consumer: str) -> bool:
        """Return messages that a lost connection reserved and that never arrived here.

        An acked message has arrived: its lease may still exist if its ack is on its way over
        another connection. While a reserve is in progress, its messages may still arrive. Returns
        False then, to be called again.
        """
        leases = store.leases_of(queue, consumer)
        transports = list(self._transports)
        if any(item.consumes and item.reserver.reserving(consumer) for item in transports):
            return False
        with self.lock:
            unseen = [
                lease
                for lease in leases
                if lease.tag not in self.unconfirmed and self._leases.own(*lease) is None
            ]
        if unseen:
            store.release(queue, "undelivered", unseen)
            logger.info(
                "returned %d messages to %r: the reserve's reply was lost", len(unseen), queue
            )
        return True
