"""Reserver: requests messages from the broker, and processes the replies.

With an event loop, no code here waits. Without one, :meth:`Reserver.request` and
:meth:`Reserver.get_one` do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING

from ...consumer.host import HOST
from ...consumer.isolation import ISOLATION
from ...errors import BrokerRefused, BrokerUnavailable, ReliqError, again, logger
from ...values.protocol import partly_reachable
from ...values.values import ALONE, BUSY, HOLDING, IDLE, Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...values.values import Delivery
    from ..link import Link
    from .credit import Credit
    from .subscription import Schedule, Subscription


# The part of a lease after which the unread reply of a reserve is no longer delivered.
_STALE = 0.7
# How long the requests to other nodes wait for a node that does not answer.
_NODE_PATIENCE_S = 0.05
# After a lost reserve, the interval in which the number of requested messages doubles again.
_DOUBLES_S = 10.0
_DOUBLINGS = 7  # from one to more than the most messages of a reserve
_BUFFER = attrgetter("buffer")
# How often the claim to an isolated delivery is extended.
_CLAIM_EVERY_S = 1.0


@dataclass(eq=False)
class Reserver:
    """Reserves for the consumers of one transport.

    Belongs to one thread. Another may read a reply (see Wire), and then wakes the event loop.
    """

    _link: Link
    _schedule: Schedule
    _credit: Credit
    woken: Callable[[], object] = field(default=bool, init=False)
    """Called after a reservation, perhaps by another thread: wakes an event loop."""
    requested_at: float = field(default=0.0, init=False)
    """When the last request was sent."""
    failure: ReliqError | None = field(default=None, init=False)
    """The error of a posted reserve, until it is raised in the application."""
    held_back: set[str] = field(default_factory=set, init=False)
    """Queues that give no more messages until one is settled: a poison candidate, or a slot."""
    _getting: bool = field(default=False, init=False)

    def request(self) -> None:
        """Reserve and wait until a message arrives or all queues with credit were queried."""
        schedule, store = self._schedule, self._link.store
        if schedule.fed and self._read_logs():
            self.wait_for_replies()
        tried: set[Subscription] = set()
        wanting = schedule.wanting(store)
        while wanting and (requested := self._post_requests(wanting)):
            store.wait_for_replies(_NODE_PATIENCE_S if store.has_nodes else inf)
            if self.failure is not None:
                self.raise_failure()
            if any(map(_BUFFER, requested)):
                break
            # They returned their credit, which is now available to the others.
            tried |= requested
            if not schedule.is_round_robin:
                wanting = schedule.wanting(store)
            wanting = [item for item in wanting if item not in tried]
        if ISOLATION.on and ISOLATION.active and self._ask_isolated():
            self.wait_for_replies()
            self.raise_failure()

    def wait_for_replies(self) -> None:
        """Wait for the replies, but only briefly for a node that does not answer."""
        store = self._link.store
        store.wait_for_replies(_NODE_PATIENCE_S if store.has_nodes else inf)

    def get_one(self, queue: str, no_ack: bool) -> Reservation:
        """Reserve one message without a consumer; waits."""
        link, credit = self._link, self._credit
        link.session.duties.poll(link.store, queue)
        occupancy = self._occupancy
        if not no_ack and ISOLATION.active:
            if not credit.may_get(queue):
                return Reservation([], -1, link.session.lease_ms, left=True)
            occupancy = credit.alone
        self._getting = not no_ack
        requested_at = monotonic()
        try:
            reservation = link.store.reserve(queue, 1, link.session.lease_ms, no_ack, occupancy)
            if not no_ack:
                link.session.leases.take(reservation.deliveries, requested_at, reservation.lease_ms)
                credit.note(queue, reservation, requested_at)
                if reservation.limited:
                    link.session.leases.limited.add(queue)
        except BaseException:
            if not no_ack:
                link.session.outbox.reserve_lost(queue, link.store.consumer)
            raise
        finally:
            self._getting = False
        if reservation.claimed and occupancy != ALONE and credit.alone == ALONE:
            return self.get_one(queue, no_ack)
        return reservation

    @property
    def asking(self) -> bool:
        """Whether a reserve is in progress that may bring leases."""
        return self._getting or any(
            item.in_flight and not item.no_ack for item in list(self._schedule.subscriptions)
        )

    def reserving(self, consumer: str) -> bool:
        """Whether a reserve as *consumer* is in progress, whose leases are still unknown."""
        return self._link.store.consumer == consumer and self.asking

    def post_requests(self) -> None:
        """Start to reserve for every subscription with demand and credit."""
        self.note_interrupted()
        if self._schedule.fed:
            self._read_logs()
        if ISOLATION.active:
            self._ask_isolated()
        self._post_requests(self._schedule.wanting(self._link.store))

    def _post_requests(self, wanting: Sequence[Subscription]) -> set[Subscription]:
        requested = set()
        for item, n in self._credit.shares(wanting):
            if n > 0:
                self.post_request(item, n)
                requested.add(item)
            else:
                self._promote_for_others(item)
        return requested

    def _read_logs(self) -> bool:
        """Start the due reads of logs; return whether there was one."""
        due = [
            (item, feed)
            for item, feed in self._schedule.fed
            if not item.buffer and feed.due_at <= monotonic()
        ]
        for item, feed in due:
            feed.read(self._link.store, partial(self._logged, item))
        return bool(due)

    def _logged(self, item: Subscription, deliveries: Sequence[Delivery]) -> None:
        if deliveries and item in self._schedule.subscriptions:
            item.buffer.extend(deliveries)
            self.woken()

    def _promote_for_others(self, item: Subscription) -> None:
        """Make due messages ready and notify others: *item* has no credit to take them.

        Perhaps no other consumer was notified of the publish, and so none knows when it is due.
        """
        if item.due:
            item.due_at = None  # until the reply contains the next due time
            try:
                self._link.store.post_promote(item.queue, item.promoted)
            except ReliqError:
                item.want()
                raise

    def post_request(self, item: Subscription, n: int) -> None:
        """Start to reserve up to *n* messages for *item*."""
        if n > 0:
            if self._link.session.fewer:
                n = self._after_a_loss(item.queue, n)
            # Another thread may have received an isolated delivery a moment ago.
            if (
                ISOLATION.on
                and not item.no_ack
                and ISOLATION.active
                and self._credit.shuts_out(item)
            ):
                item.note_request(0)
                item.want()
            else:
                self._post(item, n, self._occupancy)

    @property
    def _occupancy(self) -> int:
        """The state of this process that an ordinary reserve reports to the broker."""
        if ISOLATION.back_off_until and ISOLATION.in_back_off and self._credit.alone != ALONE:
            return BUSY
        return HOLDING if self._link.session.leases.held else IDLE

    def note_interrupted(self) -> None:
        """End each reserve that was interrupted before it was posted, or while it was answered."""
        for item in self._schedule.subscriptions:
            if item.in_flight and not self._link.store.waiting:
                self._not_reserved(item)

    def _post(self, item: Subscription, n: int, occupancy: int) -> None:
        link = self._link
        self.requested_at = monotonic()
        answer = partial(self._reserved, item)
        item.note_request(n)
        try:
            link.store.post_reserve(
                item.queue, n, link.session.lease_ms, item.no_ack, answer, occupancy
            )
        except ReliqError:
            if item.in_flight:  # it could not be written, so there is no callback
                self._not_reserved(item)
            raise

    def _after_a_loss(self, queue: str, n: int) -> int:
        """Return how many of *n* messages to request: fewer for a while after a lost reserve."""
        fewer = self._link.session.fewer
        most, since = fewer.get(queue, (n, 0.0))
        doublings = int((monotonic() - since) / _DOUBLES_S)
        if doublings > _DOUBLINGS:
            fewer.pop(queue, None)
            return n
        return min(most << doublings, n)

    def _not_reserved(self, item: Subscription, lost: bool = False) -> None:
        """Request again, and search for leases of a reserve without a reply.

        *lost*: the reply may have exceeded ``client-output-buffer-limit``; request fewer messages.
        """
        if lost:
            self._link.session.fewer[item.queue] = (max(item.requested // 2, 1), monotonic())
        item.unanswered()
        if not item.no_ack:
            self._link.session.outbox.reserve_lost(item.queue, self._link.store.consumer)

    def _reserved(self, item: Subscription, result: Reservation | ReliqError) -> None:
        link = self._link
        if isinstance(result, ReliqError):
            if self._continues_without(item, result):
                return
            self._not_reserved(item, lost=not result.reply)
            # If only one node was lost, the next reserve waits until it is replaced.
            if not isinstance(result, BrokerUnavailable) or not partly_reachable(link.store):
                self.failure = result
            self.woken()
            return
        if result.held_back or result.limited or link.session.leases.limited:
            result = self._note_limits(item.queue, result)
        if result.deliveries and not item.no_ack:
            if monotonic() - item.requested_at > result.lease_ms / 1000 * _STALE:
                # Read so late that the leases may have expired: other consumers may hold them.
                result = self._without(result, 0)._replace(left=True)
            link.session.leases.take(result.deliveries, item.requested_at, result.lease_ms)
        if not item.no_ack and (ISOLATION.on or result.claimed or result.isolated):
            self._credit.note(item.queue, result, item.requested_at, item.began_at)
        if result.claimed or result.isolated:
            item.want()  # as soon as this consumer has credit again
        if item in self._schedule.subscriptions:
            item.reserved(result)
            self.woken()
        else:  # cancelled while the reserve was in progress
            item.requested = 0
            link.session.outbox.return_later(result.deliveries, no_ack=item.no_ack)

    def _without(self, result: Reservation, kept: int) -> Reservation:
        """Return a reply without the messages after the first *kept*, which go back."""
        self._link.session.outbox.return_later(result.deliveries[kept:])
        return result._replace(deliveries=result.deliveries[:kept])

    def _note_limits(self, queue: str, result: Reservation) -> Reservation:
        """Record what withholds messages; a worker that learns of limits returns its surplus."""
        session = self._link.session
        limited = session.leases.limited
        if result.held_back or (result.limited and not result.left):
            self.held_back.add(queue)
        if not result.limited:
            if queue in limited:  # an operator removed them, or the broker has lost its data
                limited.discard(queue)
                session.duties.runner.soon(session.registration.come_back)
            return result
        if queue in limited:
            return result
        limited.add(queue)
        if not self._credit.of_worker():
            return result
        return self._without(result, max(HOST.free(), 0))

    def _continues_without(self, item: Subscription, error: ReliqError) -> bool:
        """Whether to pause one queue and continue with the others.

        Nothing was reserved. A worker pauses a refused queue, unless it was never served: then the
        worker should fail. Any process pauses a queue whose node cannot serve, to use the others.
        """
        if isinstance(error, BrokerRefused):
            left_alone = item.heard and self._credit.of_worker()
        else:  # the node has replied that it cannot serve now
            replied = isinstance(error, BrokerUnavailable) and error.reply
            left_alone = bool(replied) and partly_reachable(self._link.store)
        if not left_alone:
            return False
        pause_s = self._link.session.options.poll_interval
        if not item.refused:
            logger.error(
                "cannot reserve messages from %r: %s; it is retried every %g s, and this "
                "process consumes its other queues meanwhile",
                item.queue,
                error,
                pause_s,
            )
        item.put_off(pause_s)
        return True

    def ask_again(self, queue: str) -> None:
        """Record that a message of *queue*, perhaps a poison candidate, is settled."""
        if queue not in self.held_back:
            return
        self.held_back.discard(queue)
        for item in self._schedule.subscriptions:
            if item.queue == queue:
                item.want()

    def _ask_isolated(self) -> bool:
        """Request the isolated delivery that awaits this process; return whether one was sent.

        Until the process is idle, only extend the claim, every second.
        """
        queue = self._credit.awaited_from
        if queue is None:
            return False
        waiting = (
            item for item in self._schedule.subscriptions if item.queue == queue and not item.no_ack
        )
        item = next(waiting, None)
        if item is None or item.in_flight or item.buffer:
            return False
        occupancy = self._credit.alone
        n = self._credit.of_channel(item.qos)
        if occupancy != ALONE or n <= 0:
            if monotonic() - item.requested_at < _CLAIM_EVERY_S:
                return False
            n = 1
        self._post(item, n, occupancy)
        return True

    def raise_failure(self) -> None:
        """Raise an error that could not be raised when it occurred."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise again(failure)
