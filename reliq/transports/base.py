"""Transport: a connection as Kombu sees it. Engine-free; a scheme adds the store."""

from __future__ import annotations

import gc
import logging
from array import array
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from .._version import __version__
from ..consumer.sessions import SESSIONS
from ..errors import BrokerUnavailable, NotFound, ReliqError
from ..integrations.celery import WATCH
from ..integrations.flower import show_queues
from ..integrations.gevent import let_others_run
from ..message.queue_arguments import is_durable
from ..options import Options, parse
from ..routing.publish_ids import PUBLISHER
from ..routing.routes import Routes
from .channel import Channel
from .eventloop import EventLoop
from .failback import Failback
from .link import Link
from .passed import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..consumer.session import StoreFactory
    from ..store.protocol import Store
    from .subscription import Subscription

logger = logging.getLogger("reliq")


class _Recoverable:
    """The errors for which Kombu tries a publish again: an attribute of the class, and of each.

    OperationalError is not one: Kombu makes it of the last try to connect that a policy
    allows, and would begin with the whole policy again. But Kombu makes it also of the last
    one within connect_timeout, whatever the policy allows. So that is to be no limit where
    there is a policy. Kombu writes the policy into the transport options, and asks the
    transport for this attribute, as a publish with retries begins.
    """

    def __init__(self, errors: tuple[type[Exception], ...]) -> None:
        self._errors = errors

    def __get__(
        self, transport: Transport | None, owner: type[Transport]
    ) -> tuple[type[Exception], ...]:
        client = None if transport is None else transport.client
        if client is not None and "max_retries" in client.transport_options:
            client.transport_options.setdefault("connect_retries_timeout", None)
        return self._errors


class Transport(Failback, EventLoop, virtual.Transport):
    """What every scheme of reliq has in common."""

    driver_type = "redis"  # Celery asks: mingle, gossip, events, worker_disable_prefetch
    driver_name = "reliq"
    polling_interval = None

    connection_errors = (*virtual.Transport.connection_errors, BrokerUnavailable)
    channel_errors = virtual.Transport.channel_errors
    recoverable_connection_errors = _Recoverable(connection_errors)
    recoverable_channel_errors = ()

    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset({"direct", "topic", "fanout"}),
        heartbeats=False,
    )
    supports_batch_publish = True

    def __init__(self, client: Any, **_: Any) -> None:
        # Not the base's: no broker state in the process, no polling cycle.
        let_others_run()
        WATCH.connect()
        show_queues()
        self._released = False
        self.client = client
        self.options: Options = parse(client.transport_options)
        session = SESSIONS.session_for(self.session_key(), self.options, self.store_factory(), self)
        store = session.open_store()
        self.link = Link(session, store, Routes(store))
        self.channels: list[Channel] = []
        self.declared_queues: dict[str, tuple[bytes, dict[str, str]]] = {}
        session.registration.topology.give(self.link.routes, self.declared_queues)
        self.unroutable: set[tuple[str, str]] = set()
        self.deferred: deque[Callable[[], None]] = deque()
        self._used_channel_ids = array("H")
        self._epoch = 0
        EventLoop.__init__(self)
        Failback.__init__(self)
        store.keeps_long = self.may_spool

    @property
    def client(self) -> Any:
        """The Kombu connection whose transport this is; None once that has dropped it."""
        return self._client

    @client.setter
    def client(self, client: Any) -> None:
        self._client = client
        if client is None and not self._released:
            # Kombu closes what it has connected, and drops the rest with no more than this.
            self._let_go(lost=False)

    # -- what a scheme says

    def session_key(self) -> Hashable:
        """Return what makes two connections the same consumer of the same broker."""
        raise NotImplementedError

    def store_factory(self) -> StoreFactory:
        """Return what opens a store, given who takes messages through it.

        It must not refer to this transport, which the session outlives.
        """
        raise NotImplementedError

    def driver_version(self) -> str:
        """Return reliq's version."""
        return __version__

    @property
    def worker(self) -> bool:
        """Whether this process is a Celery worker."""
        return WATCH.worker

    # -- connections and channels

    def establish_connection(self) -> Transport:
        """Connect, and bring the session up to date; raises BrokerUnavailable."""
        try:
            self.connect_in_turn()
        except BrokerUnavailable:
            self.deserted = bool(self.subscriptions)  # Kombu goes on to the next URL
            raise
        self._catch_up()
        return self

    def _catch_up(self) -> None:
        """Send what an earlier connection owed, once for each time we connected."""
        if self._epoch != self.link.store.epoch:
            self._epoch = self.link.store.epoch
            self.link.session.catch_up(self.link.store)

    def verify_connection(self, connection: Any) -> bool:
        """Whether the connection has not failed."""
        del connection
        return self.link.store.alive

    def create_channel(self, connection: Any) -> Channel:
        """Return a new channel of *connection*."""
        other = serving(self, connection)
        if other is not self:
            passed: Channel = other.create_channel(connection)
            return passed
        channel = Channel(self)
        self.channels.append(channel)
        return channel

    def close_channel(self, channel: Channel) -> None:
        """Forget a closed channel."""
        if channel.channel_id in self._used_channel_ids:
            self._used_channel_ids.remove(channel.channel_id)
        if channel in self.channels:
            self.channels.remove(channel)
        channel.connection = None  # as Kombu's: Message and Producer look at it

    def close_connection(self, connection: Any) -> None:
        """Close in order: what is unacked goes back, acks are confirmed.

        Never raises for a dead broker: what could not be sent goes out over the
        next connection.
        """
        del connection
        for channel in list(self.channels):
            channel.close()
        try:
            self.do_deferred()
            if self.link.store.alive:
                self.link.store.wait_for_replies()
                self.do_deferred()  # what the last replies asked for, and what they tell
                self.end_publishing()
                self.link.store.wait_for_replies()
        except ReliqError as exc:
            logger.info("%s; what is owed goes out over the next connection", exc)
        self._let_go(lost=self.loss_told)

    def end_publishing(self) -> None:
        """Let the broker forget the numbers of what was published: none will be tried again."""
        PUBLISHER.retire()
        if self.link.store.alive:
            with suppress(ReliqError):  # they lapse
                self.link.store.forget_publishers(PUBLISHER.finished)

    def _collect(self, connection: Any) -> None:
        """Drop a broken connection without waiting; nothing is requeued by it."""
        del connection
        for channel in list(self.channels):
            channel.collect()
            self.close_channel(channel)
        self._let_go(lost=self._epoch > 0)  # otherwise it was never there

    def _let_go(self, lost: bool) -> None:
        self._released = True
        registration, outbox = self.link.session.registration, self.link.session.outbox
        if lost:
            consumed = {item.queue for item in self.subscriptions}
            registration.topology.keep(self.link.routes, self.declared_queues, consumed)
        for item in list(self.subscriptions):
            item.ended()
            registration.unsubscribe(item.queue, item.no_ack)
            if lost and self._may_go_by_itself(item.queue):
                registration.linger(item.queue)
            else:
                registration.detach_later(item.queue)
            outbox.return_later(item.take_back(), no_ack=item.no_ack)
        self.subscriptions.clear()
        self._reset_order()
        self.leave_loop()
        self.link.store.close()  # a reserve under way is noted as lost by its callback
        self.leave_failback()
        self.link.session.leave(self, lost=lost, elsewhere=bool(self.urls))

    def forget_parent(self) -> None:
        """Drop, in a forked child, what the parent consumes and holds."""
        for channel in self.channels:
            channel.qos_.delivered.clear()
            for item in channel.subscriptions.values():
                item.ended()
            channel.subscriptions.clear()
        self.subscriptions.clear()
        self._reset_order()
        self.deferred.clear()
        self.forget_loop()
        self.link = self.link.over(self.link.session.open_store())
        self.link.store.keeps_long = self.may_spool

    def redeclare(self, queue: str, store: Store | None = None) -> bool:
        """Declare again a queue this connection declared and the broker has lost.

        Over *store*, where this connection may be gone.
        """
        declared = self.declared_queues.get(queue)
        if declared is None or not is_durable(declared[1]):
            return False  # never ours, or one that is meant to go by itself
        logger.warning("queue %r was lost by the broker and is declared again", queue)
        (store or self.link.store).declare_queue(queue, False, *declared)
        return True

    def _may_go_by_itself(self, queue: str) -> bool:
        declared = self.declared_queues.get(queue)
        return declared is None or not is_durable(declared[1])

    def declare_again(self, queue: str, store: Store) -> bool:
        """Declare and bind over *store* a queue that this connection has declared; False: not.

        Of whatever kind: who consumes from it comes back.
        """
        declared = self.declared_queues.get(queue)
        if declared is None:
            return False
        store.declare_queue(queue, False, *declared)
        self.link.routes.bind_again(queue, store)
        return True

    def forget_declared(self, queue: str) -> None:
        """Note that *queue* was deleted: it is not to be declared again by itself."""
        self.declared_queues.pop(queue, None)
        self.link.session.registration.topology.forget_queue(queue)

    def do_deferred(self) -> None:
        """Do what a reply asked for and could not be done while it was read."""
        while self.deferred:
            self.deferred.popleft()()

    # -- subscriptions

    def add_subscription(self, subscription: Subscription) -> None:
        """Begin to consume; raises NotFound for a queue that is not there.

        Where the broker cannot be told, nothing has begun.
        """
        queue = subscription.queue
        session = self.link.session
        session.duties.dead_consumers.clear(queue, self.link.store)
        count = session.subscribe(queue, subscription.no_ack)
        try:
            session.duties.heartbeat.register(self.link.store)
            if not self._attach(queue, count):
                raise NotFound(f"no queue {queue!r} to consume from; declare it first")
        except ReliqError as exc:
            subscription.ended()
            session.registration.unsubscribe(queue, subscription.no_ack)
            if not isinstance(exc, NotFound):
                session.registration.detach_later(queue)  # it may have noted it all the same
            raise
        self.begin_to_consume()
        self.subscriptions.append(subscription)
        self._reset_order()
        self.link.store.end_wait()
        self.keep_leases()
        self.watch_primary()

    def _attach(self, queue: str, count: int) -> bool:
        """Note a consumer of *queue*; False where it is not there.

        One that went while we were away, with us as its last consumer, is declared again.
        """
        if self.link.store.attach(queue, self.link.session.id, count):
            return True
        declared = self.link.session.registration.topology.revive(
            queue, self.link.routes, self.link.store
        )
        if declared is None:
            return False
        self.declared_queues[queue] = declared
        return self.link.store.attach(queue, self.link.session.id, count)

    def remove_subscription(self, subscription: Subscription) -> None:
        """Stop consuming; what was reserved and not delivered goes back at once."""
        self.subscriptions.remove(subscription)
        subscription.ended()
        self._reset_order()
        session = self.link.session
        count = session.registration.unsubscribe(subscription.queue, subscription.no_ack)
        if self.loss_told and self._may_go_by_itself(subscription.queue):
            # Cancelled because its connection is lost, as Celery does with rpc:// before it
            # consumes again: a queue that goes with its last consumer waits for that.
            session.outbox.return_later(subscription.take_back(), no_ack=subscription.no_ack)
            session.registration.linger(subscription.queue)
            return
        try:
            self._end_subscription(subscription, count)
        except BrokerUnavailable:
            session.outbox.return_later(subscription.take_back(), no_ack=subscription.no_ack)
            session.registration.detach_later(subscription.queue)
            raise

    def _end_subscription(self, subscription: Subscription, count: int) -> None:
        self.link.store.end_wait()
        if subscription.in_flight:
            self.link.store.wait_for_replies()
        self.flush_acks()
        if subscription.no_ack:
            self.link.session.outbox.return_later(subscription.take_back(), no_ack=True)
            self.link.session.outbox.hand_back(self.link.store)
        else:
            self.return_undelivered(subscription.take_back())
        if not self.link.store.attach(subscription.queue, self.link.session.id, count):
            self.forget_declared(subscription.queue)
            self.link.routes.forget_queue(subscription.queue)
        if not self.link.session.registration.subscriptions:
            self.link.session.duties.heartbeat.unregister(self.link.store)
        if all(item.no_ack for item in self.subscriptions):
            self._stop_taking(subscription.channel)

    def _stop_taking(self, channel: Channel) -> None:
        """Prepare for the end: the last consumer of tasks is cancelled.

        In a worker that shuts down, what Celery has prefetched and not started it
        now drops; those messages go back at once. Those of running tasks stay
        leased, and from here on a thread renews them, because the loop ends before
        the tasks do.
        """
        if self.worker:
            channel.let_messages_go()
            self.return_abandoned()
        if self.link.session.leases.held:
            self.keep_leases(loop_ends=True)

    def return_abandoned(self) -> None:
        """Give back messages that nobody holds any more."""
        gc.collect()  # Celery's requests are parts of reference cycles
        self.link.session.send_owed(self.link.store)

    def credit_changed(self, channel: Channel) -> None:
        """Give back what a lower prefetch limit leaves no room for."""
        qos = channel.qos_
        surplus = len(qos.delivered) + qos.undelivered - qos.prefetch_count
        if qos.prefetch_count and surplus > 0:
            for item in self.subscriptions:
                if item.channel is channel and not item.no_ack and surplus > 0:
                    taken = item.take_back(surplus)
                    surplus -= len(taken)
                    item.want()
                    self.return_undelivered(taken)
        self.credit_regained()

    def ack(self, queue: str, tags: Sequence[str]) -> None:
        """Finish messages: at the end of this tick of the loop, or now where no tick follows."""
        if self._loop is None or not self.batch_ack(queue, tags):
            self.link.session.outbox.ack(self.link.store, queue, tags)
        if queue in self.held_back:
            self.ask_again(queue)
        if self._starved:
            self.credit_regained()

    def dead_lettered(self, queue: str) -> None:
        """Note that a message of *queue* became a dead letter: there is room for the next."""
        self.ask_again(queue)
        self.note_dead_letter()
        self.credit_regained()


# Set here, because inside the class the name would hide the type.
Transport.Channel = Channel
