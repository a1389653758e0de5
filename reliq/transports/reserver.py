"""Reserver: asks the broker for messages, and what comes of it.

With an event loop nothing in here waits; without one :meth:`Reserver.request` and
:meth:`Reserver.get_one` do. One class, though a long one: whichever way was asked, the
answer, or its loss, ends in the same state.
"""

from __future__ import annotations

from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ..consumer import log_events
from ..consumer.isolation import ISOLATION
from ..errors import BrokerRefused, BrokerUnavailable, ReliqError, again
from ..failover.jitter import JITTER
from ..routing.partitions import names_of
from ..store.limits import MOST_REMEMBERED
from ..store.nodes import goes_on
from ..store.values import ALONE, Promoted, Reservation
from .subscription import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..options import Options
    from .isolated import IsolatedDelivery
    from .link import Link
    from .subscription import Subscription
    from .turns import Turns

# A reserve's reply that lay unread for so much of a lease is not delivered.
_STALE = 0.7
# So long the other nodes wait for one that does not answer.
_NODE_PATIENCE_S = 0.05
# A claim of a message that is to be delivered alone is extended so often.
_CLAIM_EVERY_S = 1.0
# How a queue is divided is asked so often by who takes single messages.
_LAYOUT_KEPT_S = 5.0


def _nothing() -> None:
    """No event loop is to be woken."""


class Reserver:
    """Asks the broker for the consumers of one transport.

    Of the thread that runs the application or its loop; a reply may be read by another
    one (see Wire), which then wakes the loop.
    """

    def __init__(
        self,
        link: Link,
        turns: Turns,
        options: Options,
        isolated: IsolatedDelivery,
    ) -> None:
        self._link = link
        self._turns = turns
        self._options = options
        self._isolated = isolated
        self.woken: Callable[[], None] = _nothing
        """Called when something was reserved, perhaps by another thread."""
        self.asked_at = 0.0
        """When the broker was asked last."""
        self.failure: ReliqError | None = None
        """What a posted reserve ended with: raised where the application can see it."""
        self.held_back: set[str] = set()
        """Queues that keep the rest from us until we are done with a poison candidate."""
        self._getting = False
        # The partitions of queues that are asked for a message without a consumer, and when they
        # were asked for.
        self._places: dict[str, tuple[Sequence[str], float]] = {}

    # -- asking

    def request(self) -> None:
        """Reserve, waiting, until something is here or all with credit were asked for."""
        self._request()
        if ISOLATION.active and self._ask_isolated():
            self.wait_for_replies()
            self.raise_failure()

    def wait_for_replies(self) -> None:
        """Wait for what was asked; not for long for a node that does not answer."""
        store = self._link.store
        store.wait_for_replies(_NODE_PATIENCE_S if store.has_nodes else inf)

    def _request(self) -> None:
        store = self._link.store
        wanting = self._turns.wanting(store)
        if len(wanting) == 1 and not store.has_nodes and (n := wanting[0].credit()) > 0:
            self._reserve(wanting[0], n)
            return
        while asked := self._post_requests(wanting):
            self.wait_for_replies()
            self.raise_failure()
            if any(item.buffer for item in asked):
                return
            # They gave back the credit, which goes to those that had none.
            wanting = [item for item in wanting if item not in asked]

    def _reserve(self, item: Subscription, n: int) -> None:
        link = self._link
        self.asked_at = monotonic()
        item.asked(n)
        if self._too_late(item):
            return
        try:
            reservation = link.store.reserve(
                item.queue,
                n,
                link.session.lease_ms,
                item.no_ack,
                self._isolated.company,
            )
        except BaseException as exc:  # also a signal's, or a timeout of gevent's
            if self._goes_on_without(item, exc):
                return
            self._not_reserved(item)
            raise
        self._reserved(item, reservation)

    def places(self, queue: str) -> Sequence[str]:
        """Return the partitions of *queue*, any of them first; asks every few seconds."""
        known = self._places.get(queue)
        if known is None or monotonic() >= known[1] + _LAYOUT_KEPT_S:
            names = self._ask_places(queue)
        else:
            names = known[0]
        if len(names) == 1:
            return names
        first = JITTER.randrange(len(names))
        return (*names[first:], *names[:first])

    def new_places(self, queue: str, looked_into: Sequence[str], began_at: float) -> Sequence[str]:
        """Return the partitions that have come to *queue* since they were asked for.

        Where these were found empty, since *began_at*: one question more, if it is divided.
        """
        known = self._places.get(queue)
        if len(looked_into) == 1 or (known is not None and known[1] >= began_at):
            return ()
        return [name for name in self._ask_places(queue) if name not in looked_into]

    def _ask_places(self, queue: str) -> Sequence[str]:
        asked_at = monotonic()
        names = names_of(self._link.store, queue)
        if len(self._places) >= MOST_REMEMBERED:
            self._places.clear()
        self._places[queue] = names, asked_at
        return names

    def get_one(self, queue: str, no_ack: bool) -> Reservation:
        """Reserve one message that no consumer asked for; waits."""
        link = self._link
        link.session.duties.poll(link.store, queue)
        link = self._link  # another one, where that has found us to be a child
        company = self._isolated.company
        if not no_ack and ISOLATION.active:
            if not self._isolated.may_get(queue):
                return Reservation([], -1, link.session.lease_ms, left=True)
            company = self._isolated.alone
        self._getting = not no_ack
        asked_at = monotonic()
        try:
            reservation = link.store.reserve(queue, 1, link.session.lease_ms, no_ack, company)
            if not no_ack:
                link.session.leases.take(reservation.deliveries, asked_at, reservation.lease_ms)
                self._isolated.note(queue, reservation, asked_at)
        except BaseException:
            if not no_ack:
                link.session.outbox.reserve_lost(queue, link.store.consumer)
            raise
        finally:
            self._getting = False
        if reservation.claimed and company != ALONE and self._isolated.alone == ALONE:
            return self.get_one(queue, no_ack)
        return reservation

    def reserving(self, consumer: str) -> bool:
        """Whether a reserve is under way as this consumer: what it took is not known yet."""
        return self._link.store.consumer == consumer and (
            self._getting or any(item.in_flight for item in list(self._turns.subscriptions))
        )

    def post_requests(self) -> None:
        """Begin to reserve for every subscription that wants and has credit."""
        if ISOLATION.active:
            self._ask_isolated()
        self._post_requests(self._turns.wanting(self._link.store))

    def _post_requests(self, wanting: Sequence[Subscription]) -> set[Subscription]:
        """Begin to reserve for each that has credit; return which have."""
        asked = set()
        for item, n in self._turns.shares(wanting):
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
        link = self._link
        if item.due:
            item.due_at = None  # until the answer says what is due next
            answer = partial(self._promoted, item)
            try:
                link.store.post_promote(item.queue, answer)
            except ReliqError:
                item.want()
                raise

    def _promoted(self, item: Subscription, result: Promoted | ReliqError) -> None:
        if isinstance(result, ReliqError):
            item.want()
        else:
            item.promoted(result)

    def post_request(self, item: Subscription, n: int) -> None:
        """Begin to reserve up to *n* messages for *item*."""
        if n > 0:
            item.asked(n)
            if not self._too_late(item):
                self._post(item, n, self._isolated.company)

    def _post(self, item: Subscription, n: int, company: int) -> None:
        link = self._link
        self.asked_at = monotonic()
        answer = partial(self._reserved, item)
        try:
            link.store.post_reserve(
                item.queue, n, link.session.lease_ms, item.no_ack, answer, company
            )
        except ReliqError:
            if item.in_flight:  # it could not be written, so nobody else will be told
                self._not_reserved(item)
            raise

    def _not_reserved(self, item: Subscription) -> None:
        """Ask again, and look for what a reserve without an answer may have leased."""
        link = self._link
        item.answered()
        item.want()
        if not item.no_ack:
            link.session.outbox.reserve_lost(item.queue, link.store.consumer)

    def _reserved(self, item: Subscription, result: Reservation | ReliqError) -> None:
        link = self._link
        if isinstance(result, ReliqError):
            if self._goes_on_without(item, result):
                return
            self._not_reserved(item)
            if not self._lost_a_node(result):
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
            self._isolated.note(item.queue, result, item.asked_at, item.began_at)
        if result.claimed or result.isolated:
            item.want()  # as soon as it may take something
        if result.held_back:
            self.held_back.add(item.queue)
        if item in self._turns.subscriptions:
            item.reserved(result)
            self.woken()
        else:  # cancelled while the reserve was under way
            item.answered()
            link.session.outbox.return_later(result.deliveries, no_ack=item.no_ack)

    def _goes_on_without(self, item: Subscription, error: BaseException) -> bool:
        """Whether one queue is left alone for a while, for the sake of the others.

        Nothing was taken. By a worker where it is refused; where the queue was never to be had, it
        had better say so and end. By all where one of several nodes cannot serve now: what else is
        consumed is at the others.
        """
        if isinstance(error, BrokerRefused):
            goes_on = item.heard and self._isolated.of_worker()
        else:
            goes_on = self._is_not_now(error)
        if not goes_on:
            return False
        if not item.refused:
            log_events.queue_refused(item.queue, error, self._options.poll_interval)
        item.put_off(self._options.poll_interval)
        return True

    def _is_not_now(self, error: BaseException) -> bool:
        """Whether a node has said that it cannot serve now."""
        said = isinstance(error, BrokerUnavailable) and bool(error.reply)
        return said and self._has_others

    def _lost_a_node(self, error: ReliqError) -> bool:
        """Whether a node was lost, and not all: what is asked next waits until it is replaced."""
        lost = isinstance(error, BrokerUnavailable) and not error.reply
        return lost and self._has_others

    @property
    def _has_others(self) -> bool:
        return goes_on(self._link.store)

    def ask_again(self, queue: str) -> None:
        """Note that a message of *queue*, perhaps a poison candidate, is finished or back."""
        if queue not in self.held_back:
            return
        self.held_back.discard(queue)
        for item in self._turns.subscriptions:
            if item.queue == queue:
                item.want()

    @property
    def asking(self) -> bool:
        """Whether a consumer's reserve is under way that may bring leases."""
        return self._getting or any(
            item.in_flight and not item.no_ack for item in list(self._turns.subscriptions)
        )

    # -- isolated deliveries

    def _too_late(self, item: Subscription) -> bool:
        """Take back a request where another thread is to have a message alone since a moment."""
        if item.no_ack or not ISOLATION.active or not self._isolated.shuts_out(item.began_at):
            return False
        item.answered()
        item.want()
        return True

    def _ask_isolated(self) -> bool:
        """Ask for the message that waits for this process to be alone; False where it is not.

        Until it is, the claim is extended every second.
        """
        queue = self._isolated.awaited_from
        if queue is None:
            return False
        waiting = (
            item for item in self._turns.subscriptions if item.queue == queue and not item.no_ack
        )
        item = next(waiting, None)
        if item is None or item.in_flight or item.buffer:
            return False
        company = self._isolated.alone
        n = item.qos.credit(UNLIMITED)
        if company == ALONE and n > 0:
            item.asked(n)
        elif monotonic() - item.asked_at >= _CLAIM_EVERY_S:
            item.asked(1)
        else:
            return False
        self._post(item, item.asked_for, company)
        return True

    def raise_failure(self) -> None:
        """Raise what went wrong where nobody could be told."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise again(failure)
