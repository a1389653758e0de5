"""Reserver: asks the broker for messages, and what comes of it.

With an event loop nothing in here waits; without one :meth:`Reserver.request` and
:meth:`Reserver.get_one` do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ..consumer.isolation import ISOLATION
from ..errors import BrokerRefused, BrokerUnavailable, ReliqError, again, logger
from ..store.protocol import goes_on
from ..store.values import ALONE, Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .credit import Credit
    from .link import Link
    from .subscription import Schedule, Subscription


# A reserve's reply that lay unread for so much of a lease is not delivered.
_STALE = 0.7
# So long the other nodes wait for one that does not answer.
_NODE_PATIENCE_S = 0.05
# A claim of a message that is to be delivered alone is extended so often.
_CLAIM_EVERY_S = 1.0


@dataclass(eq=False)
class Reserver:
    """Asks the broker for the consumers of one transport.

    Of the thread that runs the application or its loop; a reply may be read by another
    one (see Wire), which then wakes the loop.
    """

    _link: Link
    _schedule: Schedule
    _credit: Credit
    _poll_interval: float
    woken: Callable[[], object] = field(default=bool, init=False)
    """Called when something was reserved, perhaps by another thread: wakes an event loop."""
    asked_at: float = field(default=0.0, init=False)
    """When the broker was asked last."""
    failure: ReliqError | None = field(default=None, init=False)
    """What a posted reserve ended with: raised where the application can see it."""
    held_back: set[str] = field(default_factory=set, init=False)
    """Queues that keep the rest from us until we are done with a poison candidate."""
    _getting: bool = field(default=False, init=False)

    def request(self) -> None:
        """Reserve, waiting, until something is here or all with credit were asked for."""
        wanting = self._schedule.wanting(self._link.store)
        while wanting and (asked := self._post_requests(wanting)):
            self.wait_for_replies()
            self.raise_failure()
            if any(item.buffer for item in asked):
                break
            # They gave back the credit, which goes to those that had none.
            wanting = [item for item in wanting if item not in asked]
        if ISOLATION.active and self._ask_isolated():
            self.wait_for_replies()
            self.raise_failure()

    def wait_for_replies(self) -> None:
        """Wait for what was asked; not for long for a node that does not answer."""
        store = self._link.store
        store.wait_for_replies(_NODE_PATIENCE_S if store.has_nodes else inf)

    def get_one(self, queue: str, no_ack: bool) -> Reservation:
        """Reserve one message that no consumer asked for; waits."""
        link, credit = self._link, self._credit
        link.session.duties.poll(link.store, queue)
        occupancy = credit.occupancy
        if not no_ack and ISOLATION.active:
            if not credit.may_get(queue):
                return Reservation([], -1, link.session.lease_ms, left=True)
            occupancy = credit.alone
        self._getting = not no_ack
        asked_at = monotonic()
        try:
            reservation = link.store.reserve(queue, 1, link.session.lease_ms, no_ack, occupancy)
            if not no_ack:
                link.session.leases.take(reservation.deliveries, asked_at, reservation.lease_ms)
                credit.note(queue, reservation, asked_at)
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
        """Whether a consumer's reserve is under way that may bring leases."""
        return self._getting or any(
            item.in_flight and not item.no_ack for item in list(self._schedule.subscriptions)
        )

    def reserving(self, consumer: str) -> bool:
        """Whether a reserve is under way as this consumer: what it took is not known yet."""
        return self._link.store.consumer == consumer and self.asking

    def post_requests(self) -> None:
        """Begin to reserve for every subscription that wants and has credit."""
        if ISOLATION.active:
            self._ask_isolated()
        self._post_requests(self._schedule.wanting(self._link.store))

    def _post_requests(self, wanting: Sequence[Subscription]) -> set[Subscription]:
        asked = set()
        for item, n in self._credit.shares(wanting):
            if n > 0:
                self.post_request(item, n)
                asked.add(item)
            else:
                self._promote_for_others(item)
        return asked

    def _promote_for_others(self, item: Subscription) -> None:
        """Make what has become due ready, and notify: *item* has no credit to take it itself.

        It may be the only consumer that was woken when the message was published, so
        that no other knows when it is due.
        """
        if item.due:
            item.due_at = None  # until the answer says what is due next
            try:
                self._link.store.post_promote(item.queue, item.promoted)
            except ReliqError:
                item.want()
                raise

    def post_request(self, item: Subscription, n: int) -> None:
        """Begin to reserve up to *n* messages for *item*."""
        if n > 0:
            item.asked(n)
            # Not where another thread is to have a message alone since a moment.
            if not item.no_ack and ISOLATION.active and self._credit.shuts_out(item):
                item.unanswered()
            else:
                self._post(item, n, self._credit.occupancy)

    def _post(self, item: Subscription, n: int, occupancy: int) -> None:
        link = self._link
        self.asked_at = monotonic()
        answer = partial(self._reserved, item)
        try:
            link.store.post_reserve(
                item.queue, n, link.session.lease_ms, item.no_ack, answer, occupancy
            )
        except ReliqError:
            if item.in_flight:  # it could not be written, so nobody else will be told
                self._not_reserved(item)
            raise

    def _not_reserved(self, item: Subscription) -> None:
        """Ask again, and look for what a reserve without an answer may have leased."""
        item.unanswered()
        if not item.no_ack:
            self._link.session.outbox.reserve_lost(item.queue, self._link.store.consumer)

    def _reserved(self, item: Subscription, result: Reservation | ReliqError) -> None:
        link = self._link
        if isinstance(result, ReliqError):
            if self._goes_on_without(item, result):
                return
            self._not_reserved(item)
            # Where a node was lost, and not all, the next reserve waits until it is replaced.
            if not isinstance(result, BrokerUnavailable) or not goes_on(link.store):
                self.failure = result
            self.woken()
            return
        if result.deliveries and not item.no_ack:
            if monotonic() - item.asked_at > result.lease_ms / 1000 * _STALE:
                # Read so late that the leases may have run out: others have them.
                link.session.outbox.return_later(result.deliveries)
                result = result._replace(deliveries=[], left=True)
            link.session.leases.take(result.deliveries, item.asked_at, result.lease_ms)
        if not item.no_ack:
            self._credit.note(item.queue, result, item.asked_at, item.began_at)
        if result.claimed or result.isolated:
            item.want()  # as soon as it may take something
        if result.held_back:
            self.held_back.add(item.queue)
        if item in self._schedule.subscriptions:
            item.reserved(result)
            self.woken()
        else:  # cancelled while the reserve was under way
            item.asked_for = 0
            link.session.outbox.return_later(result.deliveries, no_ack=item.no_ack)

    def _goes_on_without(self, item: Subscription, error: ReliqError) -> bool:
        """Whether one queue is left alone for a while, for the sake of the others.

        Nothing was taken. By a worker where it is refused; where the queue was never to be had, it
        had better say so and end. By all where one of several nodes cannot serve now: what else is
        consumed is at the others.
        """
        if isinstance(error, BrokerRefused):
            left_alone = item.heard and self._credit.of_worker()
        else:  # a node has said that it cannot serve now
            said = isinstance(error, BrokerUnavailable) and error.reply
            left_alone = bool(said) and goes_on(self._link.store)
        if not left_alone:
            return False
        if not item.refused:
            logger.error(
                "nothing can be taken from %r: %s; it is asked again every %g s, and what else "
                "this process consumes goes on",
                item.queue,
                error,
                self._poll_interval,
            )
        item.put_off(self._poll_interval)
        return True

    def ask_again(self, queue: str) -> None:
        """Note that a message of *queue*, perhaps a poison candidate, is finished or back."""
        if queue not in self.held_back:
            return
        self.held_back.discard(queue)
        for item in self._schedule.subscriptions:
            if item.queue == queue:
                item.want()

    def _ask_isolated(self) -> bool:
        """Ask for the message that waits for this process to be alone; False where it is not.

        Until it is, the claim is extended every second.
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
        if occupancy == ALONE and n > 0:
            item.asked(n)
        elif monotonic() - item.asked_at >= _CLAIM_EVERY_S:
            item.asked(1)
        else:
            return False
        self._post(item, item.asked_for, occupancy)
        return True

    def raise_failure(self) -> None:
        """Raise what went wrong where nobody could be told."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise again(failure)
