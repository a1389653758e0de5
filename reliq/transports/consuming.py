"""Consuming: what is delivered next, and how long to wait.

The half of a transport that consumers use. With an event loop nothing in here
waits; without one, :meth:`Consuming.drain_events` does.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import BrokerUnavailable
from ..forks import here
from ..store.protocol import ignore_result
from ..store.values import Delivery, Lease
from .passed import serving
from .reserving import Credit, Reserving
from .subscription import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A quiet queue is asked without a ring once in so many poll intervals; a lost notification
# token is otherwise made up for by the next pass of restore_visible.
_QUIET_POLLS = 12
# With much in hand the other queues are asked no more often than this.
_ASK_EVERY_S = 0.005


class Consuming(Reserving):
    """The subscriptions of a transport, served in turn."""

    disconnect_when_drained: Callable[[], None]

    def __init__(self) -> None:
        Reserving.__init__(self)
        self._starved = False
        self.deserted = False
        """Whether it had consumers as its broker could not be reached again."""
        self._consuming_over = 0
        """The epoch of the store in which its consumers began."""
        self.loss_told = False
        """Whether the application was told that the consumers' connection is lost."""

    # -- delivering

    @property
    def _asking_may_wait(self) -> bool:
        """Whether it was done a moment ago, and brought enough for a while.

        Otherwise each ack would be followed by a reserve of one message for the next of
        many queues.
        """
        return monotonic() - self._asked_at < _ASK_EVERY_S and all(
            channel.qos_.well_stocked(UNLIMITED)
            for channel in {item.channel for item in self.subscriptions if not item.no_ack}
        )

    def deliver_one(self) -> bool:
        """Deliver one buffered message, in turn; False when there is none to deliver."""
        for item in self._in_order():
            if item.can_deliver():
                if len(self.subscriptions) > 1:
                    self._next_turn(item)
                item.deliver()
                return True
        return False

    def _deliver_what_is_here(self) -> bool:
        """Deliver without a look at the broker, where that may wait: the hot path."""
        if self.failure is not None:
            return False
        if len(self.subscriptions) != 1:
            return self._asking_may_wait and self.deliver_one()
        only = self.subscriptions[0]
        if not only.can_deliver():
            return False
        if only.running_low:
            self.post_request(only, only.credit())
        only.deliver()
        return True

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        """Deliver one message; raises ``socket.timeout`` when none came within *timeout* s.

        None waits for ever. Raises BrokerUnavailable when the connection is lost, also where
        another thread, an ack or a publish saw that first and has connected again.
        """
        here()  # a child delivers nothing that its parent has reserved
        other = serving(self, connection)
        if other is not self:
            self._require_no_deserter()
            other.drain_events(connection, timeout=timeout)
            return
        try:
            self._drain(timeout)
        except BrokerUnavailable:
            self.loss_told = True
            raise

    def _drain(self, timeout: float | None) -> None:
        if self._deliver_what_is_here():
            return
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if any(item.in_flight for item in self.subscriptions):
                self.link.store.wait_for_replies()
            self.raise_failure()
            self.link.store.check()
            self._require_no_gap()
            if self.link.store.notifier.listening:
                self.heed_notification()
            self.request()
            if len(self.subscriptions) > 1:
                self.wait_for_notification()  # of those that were found empty
            if self.deliver_one():
                return
            self.disconnect_when_drained()
            left = self.options.poll_interval
            if deadline is not None:
                left = min(left, deadline - monotonic())
                if left <= 0:
                    self.wait_for_notification()  # the next call learns what came between
                    raise TimeoutError("no message within the timeout")
            self._wait(left)

    def _require_no_deserter(self) -> None:
        """Raise BrokerUnavailable where Kombu has left our consumers for another broker.

        There nobody consumes, so waiting there would be in vain.
        """
        if self.deserted:
            raise BrokerUnavailable(
                f"{self.link.store.broker} was lost, and the consumers there with it: another "
                "broker answers; consume again"
            )

    def begin_to_consume(self) -> None:
        """Note over which connection the consumers begin."""
        if not self.subscriptions:
            self._consuming_over = self.link.store.epoch
            self.loss_told = False

    def _require_no_gap(self) -> None:
        """Raise BrokerUnavailable, once, where the consumers' connection is another by now.

        The broker may have lost what the application declared, and only it declares again.
        """
        if self.subscriptions and self.link.store.epoch != self._consuming_over:
            self._consuming_over = self.link.store.epoch
            raise BrokerUnavailable(
                f"the connection to {self.link.store.broker} was lost and made again: connect and "
                "consume again, in case the broker has lost what was declared"
            )

    def _wait(self, timeout_s: float) -> None:
        """Wait for the notification, for credit, for the next delayed message, or *timeout_s*."""
        self._starved = True  # before looking: an ack after this line wakes the wait
        try:
            if not self.wait_for_notification():
                self.link.store.notifier.wait(min(timeout_s, self.next_due_s()))
            self.heed_notification()
        finally:
            self._starved = False
        self.link.store.receive()

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

    def wait_for_notification(self) -> bool:
        """Begin to wait for the notifications of all queues with credit; True if it is too early.

        It is while a queue is still to be asked, or its answer is under way: a
        wait that leaves it out would not be told of its messages.
        """
        queues: set[str] = set()
        credit = Credit()
        left = self.options.poll_interval
        for item in self.subscriptions:
            if item.in_flight:
                return True
            if item.buffer or credit.of(item) <= 0:
                continue
            if item.wanted:
                return True
            if item.due_at is not None:
                left = min(left, item.due_at - monotonic())
            queues.add(item.queue)
        notifier = self.link.store.notifier
        if not queues:
            return False
        if not notifier.listening:
            notifier.listen(sorted(queues), max(left, 0.001))
        elif not queues <= notifier.queues:
            self.link.store.end_wait()
        return False

    def heed_notification(self) -> None:
        """Act on a wait that has ended: ask the queue that rang, or those long not asked."""
        notifier = self.link.store.notifier
        if not notifier.receive():
            return
        notified, now = notifier.take_notification(), monotonic()
        self._heard_at = now
        heard = False
        for item in self.subscriptions:
            if item.queue == notified:
                item.want()
                heard = heard or item.credit() > 0
            elif now - item.asked_at > self.options.poll_interval * _QUIET_POLLS:
                item.want()
        if notified is not None and not heard:
            # We cannot take it: pass the token on to whoever can.
            self.link.store.post_promote(notified, ignore_result)

    def credit_regained(self) -> None:
        """End a wait that began without credit."""
        if self._starved:
            self.link.store.notifier.wake()

    # -- giving back what was not delivered

    def return_undelivered(self, deliveries: Sequence[Delivery]) -> None:
        """Give back what was reserved and not delivered: it was never seen, so not counted."""
        by_queue: dict[str, list[Lease]] = {}
        for delivery in deliveries:
            by_queue.setdefault(delivery.queue, []).append(Lease(delivery.tag, delivery.token))
        for queue, leases in by_queue.items():
            self.link.session.outbox.release(self.link.store, queue, "undelivered", leases)

    def read_replies(self) -> None:
        """Read what has come while the application was busy; the background loop calls it."""
        if self.link.store.waiting:
            with suppress(BrokerUnavailable):  # whoever waits for a reply has been told
                self.link.store.receive()
