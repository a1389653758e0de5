"""PullLoop: chooses the next delivery, requests messages from the broker, and waits.

With an event loop, no code here waits. Without one, :meth:`PullLoop.drain` does.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import BrokerUnavailable
from ...values.values import Lease, ignore_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...consumer.runner import Runner
    from ...values.values import Delivery
    from ..declarations import Declarations
    from ..failback import Failback
    from ..link import Link
    from ..message import QoS
    from .credit import Credit
    from .reserver import Reserver
    from .subscription import Schedule

# Poll intervals after which a quiet queue is queried without a notification. A lost notification
# token is otherwise replaced by the next pass of restore_visible.
_QUIET_POLLS = 12
# Poll intervals for which a wait for a notification lasts; each new wait costs a command.
_WAIT_POLLS = 3
# The shortest interval between requests for the other queues while enough messages are buffered.
_ASK_EVERY_S = 0.005


@dataclass(eq=False)
class PullLoop:
    """Serves the consumers of one transport in turn. Belongs to the thread that delivers."""

    _link: Link
    _schedule: Schedule
    _credit: Credit
    _reserver: Reserver
    _failback: Failback
    _declarations: Declarations
    duties: Runner
    """Of its consumers: to begin where a node answers, and to follow new layouts."""
    starved: bool = field(default=False, init=False)
    """Whether a wait is in progress that began without credit."""
    # Whether a wait for notifications was begun, and may be in progress.
    _listened: bool = field(default=False, init=False)
    # The store's epoch in which its consumers started.
    _consuming_over: int = field(default=0, init=False)

    @property
    def _asking_may_wait(self) -> bool:
        """Whether the last request was recent, and enough messages are buffered.

        Otherwise, with many queues, each ack would be followed by a reserve of one message.
        """
        if monotonic() - self._reserver.requested_at >= _ASK_EVERY_S:
            return False
        taking = {item.qos for item in self._schedule.subscriptions if not item.no_ack}
        return all(map(self._credit.is_well_stocked, taking))

    def deliver_one(self) -> bool:
        """Deliver one buffered message, in turn; return False if none can be delivered."""
        only = self._schedule.only
        if only is not None:
            if not only.buffer or not (only.no_ack or only.qos.can_consume()):
                return False
            only.deliver(only.buffer)
            return True
        for item in self._schedule.in_order():
            if item.can_deliver():
                self._schedule.next(item)
                item.deliver(item.buffer)
                return True
        return False

    def drain(self, timeout: float | None) -> None:
        """Deliver one message; raises ``socket.timeout`` after *timeout* seconds without one.

        None waits forever. Raises BrokerUnavailable for a lost connection, also if another thread,
        an ack or a publish has detected the loss first and has reconnected.
        """
        try:
            only, failed = self._schedule.only, self._reserver.failure is not None
            # The hot path: a single subscription with a buffered message.
            if (
                only is not None
                and only.buffer
                and not failed
                and (only.no_ack or only.qos.can_consume())
            ):
                if only.running_low:
                    self._reserver.post_request(only, self._credit.of(only))
                only.deliver(only.buffer)
                return
            # With several subscriptions, deliver a buffered message if a request can wait.
            here = only is None and not failed and self._asking_may_wait
            if not (here and self.deliver_one()):
                self._wait_and_deliver(timeout)
        except BrokerUnavailable:
            self._schedule.loss_reported = True
            raise
        except TimeoutError:
            raise
        except BaseException:
            # An interrupt may have dropped a notification.
            for item in self._schedule.subscriptions:
                item.want()
            raise

    def _wait_and_deliver(self, timeout: float | None) -> None:
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            self._catch_up()
            self._reserver.request()
            if len(self._schedule.subscriptions) > 1:
                self.wait_for_notification()  # for the queues that were found empty
            if self.deliver_one():
                return
            self._failback.disconnect_when_drained()
            left = self._link.session.options.poll_interval
            if deadline is not None:
                left = min(left, deadline - monotonic())
                if left <= 0:
                    self.wait_for_notification()  # covers the time until the next call
                    raise TimeoutError("no message within the timeout")
            self._wait(left)

    def _catch_up(self) -> None:
        """Do due duties, and read replies and notifications; raises errors of earlier requests."""
        link = self._link
        if self.duties.due or self.duties.later or self._declarations.owed:
            self.do_duties()
        if any(item.requested for item in self._schedule.subscriptions):
            self._reserver.wait_for_replies()
            self._reserver.note_interrupted()
        if self._reserver.failure is not None:
            self._reserver.raise_failure()
        link.store.check()
        if link.store.epoch != self._consuming_over:
            self._require_no_gap()
        if self._listened:
            self._listened = link.store.notifier.listening
        if self._listened or link.store.has_nodes:
            self.heed_notification()

    def do_duties(self) -> None:
        """Declare what was postponed, and begin to consume where it is due."""
        self._declarations.settle()
        self.duties.begin()
        self.duties.run(self._link.store)

    def require_no_deserter(self) -> None:
        """Raise BrokerUnavailable after Kombu has abandoned the consumers: no message can come."""
        if self._schedule.deserted:
            raise BrokerUnavailable(
                f"the connection to {self._link.store.broker} was lost, and its consumers with it: "
                "another broker answers; consume again"
            )

    def forget_losses(self) -> None:
        """Close connections that were lost since the last consumer: they concern no new one."""
        # Twice: the end of a connection is read after its last reply.
        for step in (self._link.store.receive, self.heed_notification) * 2:
            with suppress(BrokerUnavailable):
                step()

    def begin_to_consume(self) -> None:
        """Record the connection over which the consumers start."""
        if not self._schedule.subscriptions:
            self._consuming_over = self._link.store.epoch
            self._schedule.loss_reported = False

    def _require_no_gap(self) -> None:
        """Raise BrokerUnavailable once after a loss: the application must declare again."""
        link = self._link
        if self._schedule.subscriptions:
            self._consuming_over = link.store.epoch
            raise BrokerUnavailable(
                f"the connection to {link.store.broker} was lost and reopened: connect and "
                "consume again, because the broker may have lost the declarations"
            )

    def _wait(self, timeout_s: float) -> None:
        """Wait for a notification, credit or the next delayed message, at most *timeout_s*."""
        self.starved = True  # before the check: an ack after this line ends the wait
        try:
            if not self.wait_for_notification():
                self._link.store.notifier.wait(min(timeout_s, self.next_due_s()))
            self.heed_notification()
        finally:
            self.starved = False
        self._link.store.receive()

    def next_due_s(self) -> float:
        """Return the seconds until a queue without buffered messages is due, or infinity."""
        dues = [
            item.due_at
            for item in self._schedule.subscriptions
            if item.due_at is not None and not item.buffer and not item.in_flight
        ]
        dues += [feed.due_at for item, feed in self._schedule.fed if not item.buffer]
        return max(min(dues) - monotonic(), 0.0) if dues else inf

    def wait_for_notification(self) -> bool:
        """Start to wait for notifications of all queues with credit; return True if too early.

        It is too early while a queue must be queried, or awaits a reply: the wait would omit it.
        """
        queues: set[str] = set()
        known: dict[QoS, int] = {}
        left = self._link.session.options.poll_interval * _WAIT_POLLS
        store = self._link.store
        notifier = store.notifier
        for item in self._schedule.subscriptions:
            if item.in_flight and not store.has_nodes:  # other nodes may answer sooner
                return True
            if item.in_flight or item.buffer or self._credit.of(item, known) <= 0:
                continue
            if item.wanted:
                return True
            if item.due_at is not None:
                left = min(left, item.due_at - monotonic())
            queues.add(item.queue)
        if not queues:
            return False
        if not notifier.listening or (store.has_nodes and queues != notifier.queues):
            notifier.listen(sorted(queues), max(left, 0.001))
            self._listened = True
        elif not queues <= notifier.queues:
            notifier.end_wait()
        return False

    def heed_notification(self) -> None:
        """Handle the end of a wait: query the notified queue, or those not queried for long."""
        link = self._link
        notifier = link.store.notifier
        if not notifier.receive():
            return
        now = monotonic()
        self._schedule.heard_at = now
        quiet_s = link.session.options.poll_interval * _QUIET_POLLS
        notified = set(iter(notifier.take_notification, None))
        unheard = set(notified)
        for item in self._schedule.subscriptions:
            if item.queue in notified:
                item.want()
                if self._credit.of(item) > 0:
                    unheard.discard(item.queue)
            elif item.queue in notifier.polled or now - item.requested_at > quiet_s:
                item.want()
        for queue in unheard:
            # This process has no credit for the queue: let another consumer be notified.
            link.store.post_promote(queue, ignore_result)

    def credit_regained(self) -> None:
        """End a wait that began without credit."""
        if self.starved:
            self._link.store.notifier.wake()

    def limit_changed(self, qos: QoS) -> None:
        """Return messages above a lowered prefetch limit."""
        surplus = self._credit.surplus(qos)
        for item in self._schedule.subscriptions:
            if item.qos is qos and not item.no_ack and surplus > 0:
                taken = item.take_back(surplus)
                surplus -= len(taken)
                item.want()
                self.return_undelivered(item.queue, taken)
        self.credit_regained()

    def return_undelivered(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Return undelivered messages, uncounted: the application has not received them."""
        link = self._link
        leases = [Lease(delivery.tag, delivery.token) for delivery in deliveries]
        if leases:
            link.session.outbox.release(link.store, queue, "undelivered", leases)
