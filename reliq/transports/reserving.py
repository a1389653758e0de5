"""Reserving: which queue is asked next, for how much, and what comes of it.

The half of consuming that asks. With an event loop nothing in here waits; without one
:meth:`Reserving.request` does.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from kombu.utils.scheduling import cycle_by_name

from ..consumer import log_events
from ..consumer.isolation import ISOLATION
from ..consumer.sessions import SESSIONS
from ..errors import BrokerRefused, ReliqError, again
from ..integrations.celery import WATCH
from ..store.values import ALONE, BUSY, HOLDING, IDLE, Reservation
from .subscription import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..options import Options
    from .channel import Channel
    from .link import Link
    from .subscription import Subscription

# While some queues keep a consumer busy, one that rings unheard is asked so often.
_UNHEARD_S = 1.0
# A reserve's reply that lay unread for so much of a lease is not delivered.
_STALE = 0.7
# A claim of a message that is to be delivered alone is extended so often.
_CLAIM_EVERY_S = 1.0


class Reserving:
    """The subscriptions of a transport, asked for in turn."""

    link: Link
    options: Options

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self._asked_at = 0.0
        self._heard_at = 0.0
        self._getting = False
        self.began_at = monotonic()
        # Queues that keep the rest from us until we are done with a suspect.
        self.held_back: set[str] = set()
        self._reset_order()

    def _reset_order(self) -> None:
        self._cycle: Any = cycle_by_name(self.options.queue_order_strategy)()
        self._of_queue: dict[str, list[Subscription]] = {}
        for item in self.subscriptions:
            self._of_queue.setdefault(item.queue, []).append(item)
        self._cycle.update(self._of_queue)
        self._split = self.options.queue_order_strategy == "round_robin"

    def _in_order(self) -> Iterator[Subscription]:
        """Return the subscriptions, the one whose turn it is first."""
        if len(self.subscriptions) < 2:  # noqa: PLR2004 - nothing to order
            return iter(self.subscriptions)
        turn = self._cycle.consume(len(self._of_queue))
        return (item for queue in turn for item in self._of_queue[queue])

    def _next_turn(self, item: Subscription) -> None:
        self._cycle.rotate(item.queue)
        others = self._of_queue[item.queue]
        if len(others) > 1:
            others.remove(item)
            others.append(item)

    # -- asking

    def _wanting(self) -> list[Subscription]:
        unheard = self._unheard()
        return [
            item
            for item in self._in_order()
            if not item.buffer and not item.in_flight and (item.wanted or item.queue in unheard)
        ]

    def _unheard(self) -> set[str]:
        """Return the queues whose notification nobody hears: others keep this consumer busy.

        A wait begins when all were found empty; where one never is, the rest have to be
        asked from time to time.
        """
        subscriptions = self.subscriptions
        before = monotonic() - _UNHEARD_S
        if (
            len(subscriptions) < 2  # noqa: PLR2004 - there is no other
            or self._heard_at >= before
            or not any(item.buffer or item.in_flight or item.wanted for item in subscriptions)
        ):
            return set()
        notifier = self.link.store.notifier
        heard = notifier.queues if notifier.listening else ()
        return {
            item.queue
            for item in subscriptions
            if item.asked_at < before and item.queue not in heard
        }

    def _shares(self, wanting: Sequence[Subscription]) -> Iterator[tuple[Subscription, int]]:
        """Yield how much of its channel's credit each may use now."""
        if len(wanting) == 1:
            yield wanting[0], wanting[0].credit()
            return
        credit = Credit()
        rivals = Counter(item.channel for item in wanting if not item.no_ack)
        for item in wanting:
            n = credit.of(item)
            if not item.no_ack:
                if self._split and n > 1:
                    n = max(1, n // rivals[item.channel])
                rivals[item.channel] -= 1
                credit.use(item, n)
            yield item, n

    def request(self) -> None:
        """Reserve, waiting, until something is here or all with credit were asked for."""
        self._request()
        if ISOLATION.active and self.ask_isolated():
            self.link.store.wait_for_replies()
            self.raise_failure()

    def _request(self) -> None:
        wanting = self._wanting()
        if len(wanting) == 1 and (n := wanting[0].credit()) > 0:
            self._reserve(wanting[0], n)
            return
        while asked := self._post_requests(wanting):
            self.link.store.wait_for_replies()
            self.raise_failure()
            if any(item.buffer for item in asked):
                return
            # They gave back the credit, which goes to those that had none.
            wanting = [item for item in wanting if item not in asked]

    def _reserve(self, item: Subscription, n: int) -> None:
        self._asked_at = monotonic()
        item.asked(n)
        if self._too_late(item):
            return
        try:
            reservation = self.link.store.reserve(
                item.queue, n, self.link.session.lease_ms, item.no_ack, self._company
            )
        except BaseException as exc:  # also a signal's, or a timeout of gevent's
            if self._goes_on_without(item, exc):
                return
            self._not_reserved(item)
            raise
        self._reserved(item, reservation)

    def get_one(self, queue: str, no_ack: bool) -> Reservation:
        """Reserve one message that no consumer asked for; waits."""
        self.link.session.duties.poll(self.link.store, queue)
        company = self._company
        if not no_ack and ISOLATION.active:
            if not self._may_get(queue):
                return Reservation([], -1, self.link.session.lease_ms, left=True)
            company = self._alone
        self._getting = not no_ack
        asked_at = monotonic()
        try:
            reservation = self.link.store.reserve(
                queue, 1, self.link.session.lease_ms, no_ack, company
            )
            if not no_ack:
                self.link.session.leases.take(
                    reservation.deliveries, asked_at, reservation.lease_ms
                )
                self._note_isolation(queue, reservation, asked_at, self.began_at)
        except BaseException:
            if not no_ack:
                self.link.session.outbox.reserve_lost(queue, self.link.store.consumer)
            raise
        finally:
            self._getting = False
        if reservation.claimed and company != ALONE and self._alone == ALONE:
            return self.get_one(queue, no_ack)
        return reservation

    def reserving(self, consumer: str) -> bool:
        """Whether a reserve is under way as this consumer: what it took is not known yet."""
        return self.link.store.consumer == consumer and (
            self._getting or any(item.in_flight for item in list(self.subscriptions))
        )

    def post_requests(self) -> None:
        """Begin to reserve for every subscription that wants and has credit."""
        if ISOLATION.active:
            self.ask_isolated()
        self._post_requests(self._wanting())

    def _post_requests(self, wanting: Sequence[Subscription]) -> set[Subscription]:
        """Begin to reserve for each that has credit; return which have."""
        asked = set()
        for item, n in self._shares(wanting):
            if n > 0:
                self.post_request(item, n)
                asked.add(item)
            else:
                self.promote_for_others(item)
        return asked

    def promote_for_others(self, item: Subscription) -> None:
        """Make what has become due ready, and ring: *item* has no credit to take it itself.

        It may be the only consumer that was woken when the message was published, so
        that no other knows when it is due.
        """
        if item.due:
            item.due_at = None  # until the answer says what is due next
            answer = partial(self._promoted, item)
            try:
                self.link.store.post_promote(item.queue, answer)
            except ReliqError:
                item.want()
                raise

    def _promoted(self, item: Subscription, result: Reservation | ReliqError) -> None:
        if isinstance(result, ReliqError):
            item.want()
        else:
            item.promoted(result)

    def post_request(self, item: Subscription, n: int) -> None:
        """Begin to reserve up to *n* messages for *item*."""
        if n > 0:
            item.asked(n)
            if not self._too_late(item):
                self._post(item, n, self._company)

    def _post(self, item: Subscription, n: int, company: int) -> None:
        self._asked_at = monotonic()
        answer = partial(self._reserved, item)
        try:
            self.link.store.post_reserve(
                item.queue, n, self.link.session.lease_ms, item.no_ack, answer, company
            )
        except ReliqError:
            if item.in_flight:  # it could not be written, so nobody else will be told
                self._not_reserved(item)
            raise

    def _not_reserved(self, item: Subscription) -> None:
        """Ask again, and look for what a reserve without an answer may have leased."""
        item.answered()
        item.want()
        if not item.no_ack:
            self.link.session.outbox.reserve_lost(item.queue, self.link.store.consumer)

    def _reserved(self, item: Subscription, result: Reservation | ReliqError) -> None:
        if isinstance(result, ReliqError):
            if self._goes_on_without(item, result):
                return
            self._not_reserved(item)
            self.failure = result
            self.wake_loop()
            return
        if result.deliveries and not item.no_ack:
            if monotonic() - item.asked_at > result.lease_ms / 1000 * _STALE:
                # Read so late that the leases may have run out: others have them.
                self.link.session.outbox.return_later(result.deliveries)
                result = result._replace(deliveries=[], left=True)
            self.link.session.leases.take(result.deliveries, item.asked_at, result.lease_ms)
        if not item.no_ack:
            self._note_isolation(item.queue, result, item.asked_at, item.began_at)
        if result.claimed or result.isolated:
            item.want()  # as soon as it may take something
        if result.held_back:
            self.held_back.add(item.queue)
        if item in self.subscriptions:
            item.reserved(result)
            self.wake_loop()
        else:  # cancelled while the reserve was under way
            item.answered()
            self.link.session.outbox.return_later(result.deliveries, no_ack=item.no_ack)

    def _goes_on_without(self, item: Subscription, error: BaseException) -> bool:
        """Whether a worker leaves one queue alone for a while, for the sake of its others.

        Nothing was taken. Where the queue was never to be had, it had better say so and end.
        """
        if not (isinstance(error, BrokerRefused) and item.heard and WATCH.takes_from(self)):
            return False
        if not item.refused:
            log_events.queue_refused(item.queue, error, self.options.poll_interval)
        item.put_off(self.options.poll_interval)
        return True

    def ask_again(self, queue: str) -> None:
        """Note that a message of *queue*, perhaps the suspect, is finished or given back."""
        if queue not in self.held_back:
            return
        self.held_back.discard(queue)
        for item in self.subscriptions:
            if item.queue == queue:
                item.want()

    # -- isolated deliveries

    @property
    def asking(self) -> bool:
        """Whether a consumer's reserve is under way that may bring leases."""
        return self._getting or any(
            item.in_flight and not item.no_ack for item in list(self.subscriptions)
        )

    @property
    def _company(self) -> int:
        """What an ordinary reserve says of what this process holds."""
        if ISOLATION.in_back_off and self._alone != ALONE:
            return BUSY
        return HOLDING if self.link.session.leases.held else IDLE

    @property
    def _alone(self) -> int:
        """What a reserve says while no other is made: whether the process holds nothing."""
        return ALONE if SESSIONS.nothing_in_hand() and not WATCH.busy else HOLDING

    def _note_isolation(
        self, queue: str, result: Reservation, asked_at: float, began_at: float
    ) -> None:
        if result.isolated and result.deliveries:
            ISOLATION.given(self.link.session, result.deliveries[0])
        elif result.claimed:
            ISOLATION.wait_for(self.link.session, queue, asked_at, began_at)
        else:
            ISOLATION.over(self.link.session, queue)

    def shut_out(self, item: Subscription) -> bool:
        """Whether *item* is to take nothing while a message is held alone, or waits to be.

        While one waits the tasks of a worker go on, and so does what they consume; what
        began after an isolated delivery is its own doing.
        """
        if not ISOLATION.holds and WATCH.worker and not WATCH.takes_from(self):
            return False
        return item.began_at <= ISOLATION.since

    def _too_late(self, item: Subscription) -> bool:
        """Take back a request where another thread is to have a message alone since a moment."""
        if item.no_ack or not ISOLATION.active or not self.shut_out(item):
            return False
        item.answered()
        item.want()
        return True

    def _may_get(self, queue: str) -> bool:
        """Whether ``basic_get`` may take a message while one is held alone, or waits to be."""
        if ISOLATION.holds:
            return self.began_at > ISOLATION.since
        if WATCH.worker and not WATCH.takes_from(self):
            return True
        return ISOLATION.session is self.link.session and queue == ISOLATION.queue

    def ask_isolated(self) -> bool:
        """Ask for the message that waits for this process to be alone; False where it is not.

        Until it is, the claim is extended every second.
        """
        if ISOLATION.holds or ISOLATION.session is not self.link.session:
            return False
        queue = ISOLATION.queue
        waiting = (item for item in self.subscriptions if item.queue == queue and not item.no_ack)
        item = next(waiting, None)
        if item is None or item.in_flight or item.buffer:
            return False
        company = self._alone
        n = item.channel.qos_.credit(UNLIMITED)
        if company == ALONE and n > 0:
            item.asked(n)
        elif monotonic() - item.asked_at >= _CLAIM_EVERY_S:
            item.asked(1)
        else:
            return False
        self._post(item, item.asked_for, company)
        return True

    failure: ReliqError | None = None
    """What a posted reserve ended with: raised where the application can see it."""

    def raise_failure(self) -> None:
        """Raise what went wrong where nobody could be told."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise again(failure)

    def wake_loop(self) -> None:
        """Act on a reserve that was answered; called by whichever thread reads it."""


class Credit:
    """What channels may reserve, looked up once for each: it is a sum over all consumers."""

    def __init__(self) -> None:
        self._left: dict[Channel, int] = {}

    def of(self, item: Subscription) -> int:
        """Return how many messages may be reserved for *item*."""
        if item.no_ack:
            return item.credit()
        if item.channel not in self._left:
            self._left[item.channel] = item.credit()
        return self._left[item.channel]

    def use(self, item: Subscription, n: int) -> None:
        """Note that *n* of it are spoken for; where there is no limit there is none."""
        if item.channel.qos_.limited:
            self._left[item.channel] -= max(n, 0)
