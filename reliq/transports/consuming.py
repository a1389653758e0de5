"""Consuming: which queue is asked next, what is delivered next, how long to wait.

The half of a transport that consumers use. With an event loop nothing in here
waits; without one, :meth:`drain_events` does.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from kombu.utils.scheduling import cycle_by_name

from ..errors import BrokerUnavailable, ReliqError
from ..store import Delivery, Lease, Reservation, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..options import Options
    from ..session import Session
    from .subscription import Subscription

# A quiet queue is asked without a ring once in so many poll intervals; a lost bell
# token is otherwise made up for by the next pass of restore_visible.
_QUIET_POLLS = 12
# A reserve's reply that lay unread for so much of a lease is not delivered.
_STALE = 0.7


class Consuming:
    """The subscriptions of a transport, served in turn."""

    store: Store
    session: Session
    options: Options
    leave_when_dry: Callable[[], None]

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self._starved = False
        # Queues that keep the rest from us until we are done with a suspect.
        self.held_back: set[str] = set()
        self._reset_order()

    def _reset_order(self) -> None:
        self._cycle: Any = cycle_by_name(self.options.queue_order_strategy)()
        self._cycle.update(dict.fromkeys(item.queue for item in self.subscriptions))
        self._split = self.options.queue_order_strategy == "round_robin"

    def _in_order(self) -> Sequence[Subscription]:
        subscriptions = self.subscriptions
        if len(subscriptions) < 2:  # noqa: PLR2004 - nothing to order
            return subscriptions
        places = {queue: i for i, queue in enumerate(self._cycle.consume(len(subscriptions)))}
        return sorted(subscriptions, key=lambda item: places[item.queue])

    # -- asking

    def _share(self, subscription: Subscription, wanting: Sequence[Subscription]) -> int:
        """Return how much of its channel's credit a subscription may use now."""
        credit = subscription.credit()
        if not self._split or subscription.no_ack or credit <= 1:
            return credit
        rivals = sum(
            1 for item in wanting if item.channel is subscription.channel and not item.no_ack
        )
        return max(1, credit // max(rivals, 1))

    def _wanting(self) -> list[Subscription]:
        return [
            item
            for item in self._in_order()
            if item.wanted and not item.buffer and not item.in_flight
        ]

    def request(self) -> None:
        """Reserve, waiting, for every subscription that wants and has credit."""
        wanting = self._wanting()
        for position, item in enumerate(wanting):
            n = self._share(item, wanting[position:])
            if n <= 0:
                self.promote_for_others(item)
                continue
            item.asked()
            try:
                reservation = self.store.reserve(item.queue, n, self.session.lease_ms, item.no_ack)
            except ReliqError as exc:
                self._reserved(item, exc)
                raise
            self._reserved(item, reservation)

    def post_requests(self) -> None:
        """Begin to reserve for every subscription that wants and has credit."""
        wanting = self._wanting()
        for position, item in enumerate(wanting):
            n = self._share(item, wanting[position:])
            if n <= 0:
                self.promote_for_others(item)
            self.post_request(item, n)

    def promote_for_others(self, item: Subscription) -> None:
        """Make what has become due ready, and ring: *item* has no credit to take it itself.

        It may be the only consumer that was woken when the message was published, so
        that no other knows when it is due.
        """
        if item.due:
            item.due_at = None  # until the answer says what is due next
            self.store.post_reserve(
                item.queue, 0, self.session.lease_ms, item.no_ack, partial(self._promoted, item)
            )

    def _promoted(self, item: Subscription, result: Reservation | ReliqError) -> None:
        if isinstance(result, ReliqError):
            item.want()
        else:
            item.promoted(result)

    def post_request(self, item: Subscription, n: int) -> None:
        """Begin to reserve up to *n* messages for *item*."""
        if n > 0:
            item.asked()
            self.store.post_reserve(
                item.queue, n, self.session.lease_ms, item.no_ack, partial(self._reserved, item)
            )

    def _reserved(self, item: Subscription, result: Reservation | ReliqError) -> None:
        if isinstance(result, ReliqError):
            item.in_flight = False
            item.want()
            if not item.no_ack:
                self.session.reserve_lost(item.queue, self.store.consumer)
            self.failure = result
            self.wake_loop()
            return
        if result.deliveries and not item.no_ack:
            if monotonic() - item.asked_at > result.lease_ms / 1000 * _STALE:
                # Read so late that the leases may have run out: others have them.
                self.session.return_later(result.deliveries)
                result = result._replace(deliveries=[], left=True)
            self.session.take(result.deliveries)
        if result.held_back:
            self.held_back.add(item.queue)
        if item in self.subscriptions:
            item.reserved(result)
            self.wake_loop()
        elif not item.no_ack:  # cancelled while the reserve was under way
            self.session.return_later(result.deliveries)

    def ask_again(self, queue: str) -> None:
        """Note that a message of *queue*, perhaps the suspect, is finished or given back."""
        if queue not in self.held_back:
            return
        self.held_back.discard(queue)
        for item in self.subscriptions:
            if item.queue == queue:
                item.want()

    failure: ReliqError | None = None
    """What a posted reserve ended with: raised where the application can see it."""

    def raise_failure(self) -> None:
        """Raise what went wrong where nobody could be told."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    # -- delivering

    def deliver_one(self) -> bool:
        """Deliver one buffered message, in turn; False when there is none to deliver."""
        for item in self._in_order():
            if item.can_deliver():
                if len(self.subscriptions) > 1:
                    self._cycle.rotate(item.queue)
                item.deliver()
                return True
        return False

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Deliver one message; raises ``socket.timeout`` when none came within *timeout* s.

        None waits for ever. Raises BrokerUnavailable when the connection is lost.
        """
        del connection
        if len(self.subscriptions) == 1 and self.failure is None:  # the hot path
            only = self.subscriptions[0]
            if only.can_deliver():
                if only.running_low:
                    self.post_request(only, only.credit())
                only.deliver()
                return
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if any(item.in_flight for item in self.subscriptions):
                self.store.settle()
            self.raise_failure()
            self.store.check()
            if self.store.doorbell.listening:
                self.heed_bell()
            self.request()
            if self.deliver_one():
                return
            self.leave_when_dry()
            left = self.options.poll_interval
            if deadline is not None:
                left = min(left, deadline - monotonic())
                if left <= 0:
                    self.wait_for_bell()  # the next call learns what came between
                    raise TimeoutError("no message within the timeout")
            self._wait(left)

    def _wait(self, timeout_s: float) -> None:
        """Wait for the bell, for credit, for the next delayed message, or *timeout_s*."""
        self._starved = True  # before looking: an ack after this line wakes the wait
        try:
            if not self.wait_for_bell():
                self.store.doorbell.wait(min(timeout_s, self.next_due_s()))
            self.heed_bell()
        finally:
            self._starved = False
        self.store.receive()

    def next_due_s(self) -> float:
        """Return the time until a queue is to be asked for what is due; infinite if never.

        One with messages in the buffer is asked when they are delivered.
        """
        dues = [
            item.due_at
            for item in self.subscriptions
            if item.due_at is not None and not item.buffer and not item.in_flight
        ]
        return max(min(dues) - monotonic(), 0.0) if dues else inf

    def wait_for_bell(self) -> bool:
        """Begin to wait for the bells of all queues with credit; True if it is too early.

        It is while a queue is still to be asked, or its answer is under way: a
        wait that leaves it out would not be told of its messages.
        """
        queues: set[str] = set()
        left = self.options.poll_interval
        for item in self.subscriptions:
            if item.in_flight:
                return True
            if item.buffer or item.credit() <= 0:
                continue
            if item.wanted:
                return True
            if item.due_at is not None:
                left = min(left, item.due_at - monotonic())
            queues.add(item.queue)
        doorbell = self.store.doorbell
        if not queues:
            return False
        if not doorbell.listening:
            doorbell.listen(sorted(queues), max(left, 0.001))
        elif not queues <= doorbell.queues:
            self.store.end_wait()
        return False

    def heed_bell(self) -> None:
        """Act on a wait that has ended: ask the queue that rang, or those long not asked."""
        doorbell = self.store.doorbell
        if not doorbell.receive():
            return
        rung, now = doorbell.take_ring(), monotonic()
        heard = False
        for item in self.subscriptions:
            if item.queue == rung:
                item.want()
                heard = heard or item.credit() > 0
            elif now - item.asked_at > self.options.poll_interval * _QUIET_POLLS:
                item.want()
        if rung is not None and not heard:
            # We cannot take it: pass the token on to whoever can.
            self.store.post_reserve(rung, 0, self.session.lease_ms, False, _nothing)

    def credit_regained(self) -> None:
        """End a wait that began without credit."""
        if self._starved:
            self.store.doorbell.wake()

    def wake_loop(self) -> None:
        """Act on a reserve that was answered; called by whichever thread reads it."""

    # -- giving back what was not delivered

    def return_buffered(self, deliveries: Sequence[Delivery]) -> None:
        """Give back what was reserved and not delivered: it was never seen, so not counted."""
        by_queue: dict[str, list[Lease]] = {}
        for delivery in deliveries:
            by_queue.setdefault(delivery.queue, []).append(Lease(delivery.tag, delivery.token))
        for queue, leases in by_queue.items():
            self.session.release(self.store, queue, "buffered", leases)

    def read_replies(self) -> None:
        """Read what has come while the application was busy; called by the keeper's thread."""
        if self.store.waiting:
            with suppress(BrokerUnavailable):  # whoever waits for a reply has been told
                self.store.receive()


def _nothing(_result: object) -> None:
    """Take the answer to a passed-on token."""
