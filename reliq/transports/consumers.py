"""Consumers: how a transport begins to consume from a queue, and how it ends."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, NotFound, ReliqError
from ..forks import here
from ..integrations.celery import WATCH

if TYPE_CHECKING:
    from .parts import Parts
    from .subscription import Consumer, Subscription


class Consumers:
    """Tells the session, the broker and the turns of each. Of the application's thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def add(self, subscription: Subscription) -> None:
        """Begin to consume; raises NotFound for a queue that is not there.

        Where the broker cannot be told, nothing has begun.
        """
        here()  # a child has a link of its own
        parts, queue = self._parts, subscription.queue
        session, store, _ = parts.link
        session.duties.dead_consumers.clear(queue, store)
        count = session.subscribe(queue, subscription.no_ack)
        try:
            session.duties.heartbeat.register(store)
            if not self._attach(queue, count):
                raise NotFound(f"no queue {queue!r} to consume from; declare it first")
        except ReliqError as exc:
            subscription.ended()
            session.registration.unsubscribe(queue, subscription.no_ack)
            if not isinstance(exc, NotFound):
                session.registration.detach_later(queue)  # it may have noted it all the same
            raise
        parts.deliverer.begin_to_consume()
        parts.turns.add(subscription)
        store.end_wait()
        parts.loop.keep_leases()
        parts.failback.watch_primary()

    def _attach(self, queue: str, count: int) -> bool:
        """Note a consumer of *queue*; False where it is not there.

        One that went while we were away, with us as its last consumer, is declared again.
        """
        session, store, _ = self._parts.link
        return store.attach(queue, session.id, count) or (
            self._parts.declarations.revive(queue) and store.attach(queue, session.id, count)
        )

    def remove(self, subscription: Subscription) -> None:
        """Stop consuming; what was reserved and not delivered goes back at once."""
        parts, queue, no_ack = self._parts, subscription.queue, subscription.no_ack
        session = parts.link.session
        parts.turns.remove(subscription)
        subscription.ended()
        count = session.registration.unsubscribe(queue, no_ack)
        if parts.deliverer.loss_told and parts.declarations.may_go_by_itself(queue):
            # Cancelled because its connection is lost, as Celery does with rpc:// before it
            # consumes again: a queue that goes with its last consumer waits for that.
            session.outbox.return_later(subscription.take_back(), no_ack=no_ack)
            session.registration.linger(queue)
            return
        try:
            self._end(subscription, count)
        except BrokerUnavailable:
            session.outbox.return_later(subscription.take_back(), no_ack=no_ack)
            session.registration.detach_later(queue)
            raise

    def _end(self, subscription: Subscription, count: int) -> None:
        parts, queue = self._parts, subscription.queue
        session, store, routes = parts.link
        store.end_wait()
        if subscription.in_flight:
            store.wait_for_replies()
        parts.loop.flush_acks()
        if subscription.no_ack:
            session.outbox.return_later(subscription.take_back(), no_ack=True)
            session.outbox.hand_back(store)
        else:
            parts.deliverer.return_undelivered(subscription.take_back())
        if not store.attach(queue, session.id, count):
            parts.declarations.forget(queue)
            routes.forget_queue(queue)
        if not session.registration.subscriptions:
            session.duties.heartbeat.unregister(store)
        if all(item.no_ack for item in parts.turns.subscriptions):
            self._stop_taking(subscription.channel)

    def _stop_taking(self, channel: Consumer) -> None:
        """Prepare for the end: the last consumer of tasks is cancelled.

        In a worker that shuts down, what Celery has prefetched and not started it
        now drops; those messages go back at once. Those of running tasks stay
        leased, and from here on a thread renews them, because the loop ends before
        the tasks do.
        """
        if WATCH.worker:
            channel.settlement.let_go()
            self.return_abandoned()
        if self._parts.link.session.leases.held:
            self._parts.loop.keep_leases(loop_ends=True)

    def return_abandoned(self) -> None:
        """Give back messages that nobody holds any more."""
        gc.collect()  # Celery's requests are parts of reference cycles
        link = self._parts.link
        link.session.send_owed(link.store)

    def drop(self, lost: bool) -> None:
        """End all without a word to the broker: the connection is closed, or *lost*."""
        parts, session = self._parts, self._parts.link.session
        subscriptions, declarations = parts.turns.subscriptions, parts.declarations
        if lost:
            consumed = {item.queue for item in subscriptions}
            session.registration.topology.keep(parts.link.routes, declarations.queues, consumed)
        for item in list(subscriptions):
            item.ended()
            session.registration.unsubscribe(item.queue, item.no_ack)
            if lost and declarations.may_go_by_itself(item.queue):
                session.registration.linger(item.queue)
            else:
                session.registration.detach_later(item.queue)
            session.outbox.return_later(item.take_back(), no_ack=item.no_ack)
        parts.turns.clear()
