"""Consumers: how a transport starts and stops consuming from a queue."""

from __future__ import annotations

import gc
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

from ...consumer.host import HOST
from ...consumer.runner import LATER, Duty
from ...errors import BrokerUnavailable, NotFound, logger
from ...forks import here
from ...message.queue_names import number_of, partition_names
from ...routing.partitions import recovered
from ...values.protocol import Attempt
from .feed import begin_to_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from ...values.protocol import Store
    from ...values.values import Layout
    from ..declarations import Declarations
    from ..failback import Failback
    from ..link import Link
    from ..message import QoS
    from .eventloop import EventLoop
    from .pull import PullLoop
    from .subscription import Schedule, Subscription


# Patience with a node when consuming starts.
_NODE_PATIENCE_S = 0.2
# How long to wait for each node when a consumer is cancelled.
_CANCEL_PATIENCE_S = 1.0


@dataclass(eq=False)
class Consumers:
    """Registers and removes consumers. Belongs to the application's thread."""

    _link: Link
    _declarations: Declarations
    _schedule: Schedule
    _pull: PullLoop
    _loop: EventLoop
    _failback: Failback
    late: list[Subscription] = field(default_factory=list, init=False)
    """Subscriptions of a Celery worker that begin when the node of their queue answers."""

    def __post_init__(self) -> None:
        """Start with nothing to begin later."""
        self._runner = self._pull.duties

    def add(self, subscription: Subscription) -> None:
        """Start to consume. Raises NotFound for a missing queue, and BrokerUnavailable.

        After an error, call :meth:`abandon`. However, a Celery worker starts without its queues on
        unreachable nodes, and adds each of them when its node answers. A divided queue is consumed
        from every partition, and the consumer follows changes of the layout.
        """
        declarations, queue = self._declarations, subscription.queue
        try:
            with declarations.patience_with(queue):
                declarations.declare_owed(queue)  # its node may be reachable again
                self._begin(subscription)
        except BrokerUnavailable as exc:
            if not declarations.may_be_late(queue):
                raise
            logger.warning(
                "%s; this worker starts without queue %r, and consumes from it when its node "
                "answers",
                exc,
                queue,
            )
            self.late.append(subscription)
            self._repeat(self._begin_late, subscription)

    def _repeat(self, step: Callable[..., object], subscription: Subscription) -> None:
        self._runner.repeat(Duty(step, args=(subscription,)))

    def _begin_late(self, subscription: Subscription, _: Store) -> None:
        if subscription not in self.late:
            return
        queue = subscription.queue
        try:
            self._declarations.declare_owed(queue)
            self._begin(subscription)
        except NotFound as exc:
            subscription.ended()
            logger.error("this worker cannot consume although the node answers: %s", exc)  # noqa: TRY400 - the text suffices
        else:
            logger.info("queue %r: its node answers, this worker consumes from it", queue)
        self.late.remove(subscription)

    def abandon(self, subscription: Subscription) -> None:
        """Undo an :meth:`add` that raised, also half way; sends nothing."""
        for item in (*subscription.partitions.values(), subscription):
            if item in self._schedule.subscriptions:
                self._take_out(item)
                self._owe(item)
        subscription.ended()

    def _begin(self, subscription: Subscription) -> None:
        self._add(subscription)
        store, queue = self._link.store, subscription.queue
        # Temporary queues and partitions are not divided.
        if not store.has_partitions or number_of(queue) or not self._declarations.may_stay(queue):
            return
        with Attempt(store):  # if the node is lost, a survey will report the layout
            layout = self._layout(queue)
            if layout is not None:
                self._link.session.registration.note_layout(queue, layout)
            if self._follow(subscription, store) is LATER:
                self._repeat(self._follow, subscription)

    def _add(self, subscription: Subscription) -> None:
        here()  # after a fork, the child has its own link
        queue = subscription.queue
        session, store = self._link.session, self._link.store
        # A partition is created after its queue and never expires. It needs only its own node:
        # patience is short here, and other nodes may be unreachable.
        is_partition = queue != subscription.of_queue
        if not self._schedule.subscriptions:
            self._pull.forget_losses()
        if not is_partition:
            session.duties.dead_consumers.clear(queue, store)
        count = session.subscribe(queue, subscription.no_ack)
        try:
            if not is_partition:
                session.duties.heartbeat.register(store)
            if not self._attach(queue, count):
                raise NotFound(f"no queue {queue!r} to consume from; declare it first")  # noqa: TRY301
            if subscription.no_ack:
                declared = self._declarations.queues.get(queue)
                subscription.feed = begin_to_read(self._link, queue, declared)
        except BaseException as exc:
            session.registration.unsubscribe(queue, subscription.no_ack)
            if not isinstance(exc, NotFound):
                session.registration.detach_later(queue)  # the broker may have registered it
            raise
        self._pull.begin_to_consume()
        self._schedule.add(subscription)
        store.notifier.end_wait()
        self._loop.keep_leases()
        self._failback.watch_primary()

    def _layout(self, queue: str) -> Layout | None:
        store = self._link.store
        with Attempt(store, _NODE_PATIENCE_S):
            return recovered(store, queue)
        return store.layout(queue)  # the node of another partition is unreachable

    def follow_layout(self, queue: str) -> None:
        """Consume from new partitions of *queue* soon, and from removed ones no more."""
        for item in list(self._schedule.subscriptions):
            if item.queue == queue:
                self._runner.soon(self._follow, "", item)

    def _follow(self, subscription: Subscription, store: Store) -> object:
        """Consume from exactly the partitions of the layout; return LATER if one is missing."""
        if subscription not in self._schedule.subscriptions:
            return None
        queue = subscription.queue
        end = self._link.session.registration.layouts.get(queue, 1)
        names = partition_names(queue, end)[1:]
        gone = [name for name in subscription.partitions if name not in names]
        self._remove_each([subscription.partitions.pop(name) for name in gone], subscription.no_ack)
        for name in names:
            if name in subscription.partitions:
                continue
            item = replace(subscription, queue=name)
            try:
                with Attempt(store, _NODE_PATIENCE_S), suppress(NotFound):
                    # A single command, whereas starting to consume takes many.
                    if store.layout(name) is not None:
                        self._add(item)
                        subscription.partitions[name] = item
            finally:
                if name not in subscription.partitions:
                    item.ended()
        return LATER if len(subscription.partitions) < len(names) else None

    def _attach(self, queue: str, count: int) -> bool:
        """Register a consumer of *queue*; return False for a missing queue.

        Declares the queue again if it was deleted with its last consumer, this process, during an
        outage, or if it expired between its declaration and this call, as in a frozen process.
        """
        session, store = self._link.session, self._link.store
        declarations = self._declarations
        return store.attach(queue, session.id, count) or (
            (declarations.revive(queue) or declarations.declare_again(queue, store))
            and store.attach(queue, session.id, count)
        )

    def remove(self, subscription: Subscription) -> None:
        """Stop consuming; return reserved but undelivered messages at once.

        An unreachable node delays neither this call nor other partitions: it is notified later.
        Raises BrokerUnavailable if the broker is unreachable; consuming stops in any case.
        """
        if subscription in self.late:
            self.late.remove(subscription)
            subscription.ended()
            return
        session = self._link.session
        lingers, no_ack = self._lingers(subscription), subscription.no_ack
        items = [*subscription.partitions.values(), subscription]
        subscription.partitions.clear()
        attempt = self._remove_each(items, no_ack)
        if lingers:
            return
        with attempt, self._patience(no_ack):
            if not session.registration.subscriptions:
                session.duties.heartbeat.leave(self._link.store)
        with attempt, self._patience(no_ack):
            if all(item.no_ack for item in self._schedule.subscriptions):
                self._stop_taking(subscription.qos)

    def _remove_each(self, items: Iterable[Subscription], no_ack: bool) -> Attempt:
        """Remove *items* in order; return the attempt, which records lost nodes.

        On an error, all of them stop consuming. Commands that could not be sent stay pending.
        """
        attempt = Attempt(self._link.store)
        left = deque(items)
        try:
            while left:
                with attempt, self._patience(no_ack):
                    self._remove(left.popleft())
        finally:
            for item in left:
                self._take_out(item)
                self._owe(item)
        return attempt

    def _patience(self, no_ack: bool) -> AbstractContextManager[None]:
        """Limit the wait for each node, unless its messages would be lost.

        Messages taken with no_ack are lost if they cannot be returned, so this waits longer.
        """
        return self._link.store.patience(inf if no_ack else _CANCEL_PATIENCE_S)

    def _lingers(self, subscription: Subscription) -> bool:
        """Whether the connection was lost, and the queue may be deleted with its last consumer.

        With ``rpc://``, Celery then cancels before it consumes again; the queue is kept until then.
        """
        return self._schedule.loss_reported and self._declarations.may_go_by_itself(
            subscription.queue
        )

    def _take_out(self, subscription: Subscription) -> int:
        """End the subscription locally; return how many subscriptions its queue still has."""
        self._schedule.remove(subscription)
        subscription.ended()
        registration = self._link.session.registration
        return registration.unsubscribe(subscription.queue, subscription.no_ack)

    def _owe(self, subscription: Subscription, *, lingers: bool = False) -> None:
        """Return its messages and leave its queue over the next connection."""
        session = self._link.session
        session.outbox.return_later(subscription.take_back(), no_ack=subscription.no_ack)
        registration = session.registration
        (registration.linger if lingers else registration.detach_later)(subscription.queue)

    def _remove(self, subscription: Subscription) -> None:
        count, queue = self._take_out(subscription), subscription.queue
        if self._lingers(subscription):
            self._owe(subscription, lingers=True)
            return
        session, store = self._link.session, self._link.store
        try:
            store.notifier.end_wait()
            if subscription.in_flight:
                store.wait_for_replies()
            self._loop.flush_acks()
            if subscription.no_ack:
                session.outbox.return_later(subscription.take_back(), no_ack=True)
                attempt = Attempt(store)
                session.outbox.hand_back(store, attempt)
                attempt.raise_lost()
            else:
                self._pull.return_undelivered(queue, subscription.take_back())
            if not store.attach(queue, session.id, count):
                self._declarations.forget(queue)
                self._link.routes.forget_queue(queue)
        except BrokerUnavailable as exc:
            self._owe(subscription)
            logger.info("%s; the cancellation for %r is sent later", exc, queue)
            raise

    def _stop_taking(self, qos: QoS) -> None:
        """Prepare for shutdown after the last consumer of tasks was cancelled.

        In a worker that shuts down, Celery drops prefetched messages that it has not started.
        They are returned at once. Messages of running tasks stay leased. From here on, a thread
        renews them, because the loop ends before the tasks do.
        """
        if HOST.worker():
            qos.channel.settlement.let_go()
            self.return_abandoned()
        session = self._link.session
        if session.leases.held or session.stays:
            self._loop.keep_leases(loop_ends=True)

    def return_abandoned(self) -> None:
        """Return messages that the application has dropped without settling them."""
        gc.collect()  # Celery's requests are parts of reference cycles
        self._link.session.send_owed(self._link.store)

    def drop(self, lost: bool) -> None:
        """End all consumers without sending anything: the connection is closed or *lost*."""
        self.forget_late()
        for item in list(self._schedule.subscriptions):
            self._take_out(item)
            self._owe(item, lingers=lost and self._declarations.may_go_by_itself(item.queue))

    def forget_late(self) -> None:
        """Begin to consume from no more queues."""
        self._runner.clear()
        for item in self.late:
            item.ended()
        self.late.clear()
