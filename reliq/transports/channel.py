"""Channel: AMQP's verbs over a store. Kombu's design, independent of the engine.

Kombu needs all verbs on one object, with its names and arguments. Parts of the transport (encoder,
publishing, declarations, consumers) and of the channel (QoS, receiver, settlement) do the work.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from .. import transports
from ..consumer.host import HOST
from ..errors import BrokerUnavailable, logger
from ..forks import PROCESS, here
from ..lazy import Lazy
from ..routing.partitions import in_each, names_of, refuse_partition, waiting
from ..values.job_headers import BATCH
from .client import Client
from .consume.subscription import Subscription
from .message import Message, QoS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqp.protocol import queue_declare_ok_t

    from .base import Transport
    from .consume.receiver import Receiver
    from .consume.settlement import Settlement


class Channel(virtual.Channel):
    """One channel of a transport. It owns messages from delivery to ack."""

    supports_fanout = True
    supports_batch_publish = True
    do_restore = True
    message_to_python = None  # read by Kombu; deliveries are messages already

    def __init__(self, connection: Transport, **_: Any) -> None:
        # Does not call the base class: no exchange classes, and options are parsed only once.
        self.connection: Transport | None = connection
        self.transport: Transport = connection
        self.closed = False
        self.qos_ = QoS(self)
        self.no_ack_consumers: set[str] = set()
        self.subscriptions: dict[str, Subscription] = self.qos_.consumers
        self.channel_id = self._get_free_channel_id()

    @Lazy
    def settlement(self) -> Settlement:
        """Settles the channel's messages. A channel that only publishes creates none."""
        return transports.Settlement(self.transport, self.qos_)

    @Lazy
    def receiver(self) -> Receiver:
        """Receives the channel's messages."""
        return transports.Receiver(self, self.transport, self.qos_, self.settlement)

    @property
    def qos(self) -> QoS:
        """The credit of this channel."""
        return self.qos_

    @property
    def client(self) -> Client:
        """``ping()`` and ``llen(queue)``. Not kept: Celery would look for a socket in it."""
        return Client(self.transport.link.store)

    @contextmanager
    def conn_or_acquire(self, client: Client | None = None) -> Iterator[Client]:
        """Yield *client*, or :attr:`client`."""
        yield client or self.client

    def _size(self, queue: str) -> int:
        store = self.transport.link.store
        return waiting(store, names_of(store, queue))

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",  # noqa: A002 - Kombu's name
        durable: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declare an exchange; raises PreconditionFailed if it exists with other properties.

        Passive: raises NotFound for a missing exchange. A pending failback comes first: a
        connection that only waits for replies publishes nothing, and no reply would find it.
        """
        del nowait
        if self.transport.failback.urls:
            self.transport.failback.fail_back()
        type_ = type or "direct"
        name, routes = exchange or f"amq.{type_}", self.transport.link.routes
        if passive:
            routes.require(name)
            return
        flags = {"durable": bool(durable), "auto_delete": bool(auto_delete)}
        with self.transport.failback.failing_over():
            routes.declare(name, type_, {**flags, "arguments": arguments or {}})

    def exchange_delete(self, exchange: str, if_unused: bool = False, *_: Any, **__: Any) -> None:
        """Delete an exchange; its queues stay, as in AMQP. Unknown exchanges are ignored."""
        self.transport.declarations.delete_exchange(exchange, if_unused)

    def prepare_queue_arguments(
        self, arguments: dict[str, Any] | None, **kwargs: Any
    ) -> dict[str, Any]:
        """Turn Kombu's queue options (expires, max_length, ...) into AMQP's arguments."""
        return dict(to_rabbitmq_queue_arguments(arguments or {}, **kwargs))

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        *_: Any,
        **__: Any,
    ) -> queue_declare_ok_t:
        """Declare a queue; return its name, waiting messages and consumers.

        Raises PreconditionFailed for differing arguments, and NotFound if *passive* and missing.
        *durable* and *exclusive* have no effect: the settings of Redis determine persistence.
        """
        del durable, exclusive
        name, declarations = queue or f"amq.gen-{uuid4()}", self.transport.declarations
        with self.transport.failback.failing_over():
            if not passive:
                name = declarations.mailboxes.declare(name, auto_delete)
            return declarations.declare_queue(name, auto_delete, arguments, passive)

    def _own(self, queue: str) -> str:
        """Return the queue at the broker: a mailbox has another name there."""
        return self.transport.declarations.mailboxes.queue(queue)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *_: Any, **__: Any
    ) -> None:
        """Bind *queue* to *exchange*; raises NotFound for an unknown exchange."""
        with self.transport.failback.failing_over():
            self.transport.declarations.bind(
                self._own(queue), exchange or "amq.direct", routing_key or ""
            )

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *_: Any, **__: Any
    ) -> None:
        """Remove one binding; one that does not exist is ignored."""
        exchange = exchange or "amq.direct"
        self.transport.declarations.unbind(self._own(queue), exchange, routing_key or "")

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, *_: Any, **__: Any
    ) -> int:
        """Delete *queue* with its messages and bindings; return the number of its messages.

        Raises PreconditionFailed if a condition is not met.
        """
        refuse_partition(queue)
        return self.transport.declarations.delete_queue(self._own(queue), if_unused, if_empty)

    def queue_purge(self, queue: str, *_: Any, **__: Any) -> int:
        """Remove the ready and delayed messages of *queue*; return their number."""
        refuse_partition(queue)
        store = self.transport.link.store
        return sum(in_each(store, self._own(queue), store.purge))

    def list_bindings(self) -> Iterable[tuple[str, str, str]]:
        """Return (queue, exchange, routing key) of every binding."""
        return list(self.transport.link.routes.bindings())

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Make Kombu's raw message, like the base class, after a pending failback.

        Kombu calls this first, so its next declarations reach the broker that gets the message.
        """
        failback = self.transport.failback
        if failback.urls:
            failback.fail_back()
        properties = properties or {}
        if "delivery_info" not in properties:
            properties["delivery_info"] = {}
        if "priority" not in properties:
            properties["priority"] = priority or self.default_priority
        return {
            "body": body,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(
        self,
        message: dict[str, Any],
        exchange: str = "",
        routing_key: str = "",
        confirm_timeout: float | None = None,
        **_: Any,
    ) -> None:
        """Store *message* in every queue of its route, once, even if it is retried.

        Takes one round trip, after which the message is stored. With ``confirm`` "none", and for a
        transient message to a fanout exchange, it is only written to the socket; an error is
        logged later. ``confirm`` "replicated" or "fsynced" takes a second round trip, after which
        the message is on the replicas or on disk. The property ``confirm`` and *confirm_timeout*
        (seconds) override the options for this message.

        Raises MessageRefused, or BrokerRefused if the broker cannot confirm in this way, before
        anything is stored. Raises BrokerUnavailable if the message may or may not be stored, and
        NotConfirmed if only its confirmation is missing. A retry with the same properties is safe.
        Atomic for each queue, not across queues.
        """
        transport = self.transport
        item = transport.encoder.encode(message, exchange, routing_key, confirm_timeout)
        try:
            transport.publishing.publish(item, message["properties"])
        except BrokerUnavailable as exc:
            elsewhere = item.goes_elsewhere(transport.link.store, exc)
            transport.failback.step_failed(exc, helps_itself=elsewhere)
            raise

    def create_publish_batch(self, max_size: int) -> Any:  # PublishBuffer knows this class
        """Return a buffer for up to *max_size* messages, for Kombu's ``Producer.batch()``."""
        return transports.PublishBuffer(self, max_size)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **_: Any
    ) -> str:
        """Start to deliver messages of *queue* to *callback*; raises NotFound."""
        refuse_partition(queue)
        deliver = partial(self.receiver.deliver, bool(no_ack), callback)
        subscription = Subscription(
            qos=self.qos_,
            deliver=deliver,
            queue=self._own(queue),
            tag=consumer_tag,
            no_ack=bool(no_ack),
            session=self.transport.link.session,
        )
        self.subscriptions[consumer_tag] = subscription
        try:
            self.transport.consumers.add(subscription)
            self.transport.declarations.mailboxes.warn(queue)
        except BaseException:
            self.subscriptions.pop(consumer_tag, None)
            self.transport.consumers.abandon(subscription)
            raise
        if no_ack:
            self.no_ack_consumers.add(consumer_tag)
        return consumer_tag

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        """Cancel a consumer; return its reserved but undelivered messages at once."""
        here()  # a child has none of its parent's consumers and messages
        subscription = self.subscriptions.pop(consumer_tag, None)
        self.no_ack_consumers.discard(consumer_tag)
        if subscription is not None and not self.closed:
            self.transport.consumers.remove(subscription)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Message | None:
        """Take one message of *queue*; return None for an empty queue."""
        refuse_partition(queue)
        message = self.receiver.get(self._own(queue), no_ack)
        if message is not None and not no_ack:
            # Not earlier: an interrupt returns a message that no caller has.
            self.qos_.delivered[message.delivery_tag] = message
        return message

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set the prefetch limit; return reserved but undelivered messages above it."""
        del prefetch_size, apply_global
        self.qos_.prefetch_count = prefetch_count
        self.transport.pull.limit_changed(self.qos_)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message. The ack is confirmed later.

        It is written to the socket at once, in a prefork worker at the end of the loop's tick.
        Raises BrokerTimeout if the broker has not answered for ``socket_timeout``.
        """
        if not PROCESS[0]:
            here()
        if multiple:
            self.settlement.settle(self.qos_.up_to(delivery_tag), "acked")
            return
        message = self.qos_.delivered.pop(delivery_tag, None) or self.qos_.take(delivery_tag)
        if message is None:
            return
        if (
            message.decode_error is not None
            or BATCH in message.headers
            or self.closed
            or message.limited_queues
        ):
            self.settlement.settle([message], "acked")
        else:  # the hot path: an ordinary message has no one else to report to
            self.transport.loop.ack(message.queue, (delivery_tag,))

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return a message, counted as a failed delivery, or make it a dead letter."""
        self.settlement.reject(delivery_tag, requeue)

    def basic_recover(self, requeue: bool = False) -> None:
        """Return every unacked message of this channel, counted as a failed delivery."""
        if not requeue:
            raise NotImplementedError("basic.recover is only possible with requeue=True")
        self.settlement.give_back("nacked")

    def close(self) -> None:
        """Cancel all consumers and return unacked messages, uncounted.

        Never raises for an unreachable broker.
        """
        if self.closed:
            return
        here()
        transport = self.transport
        try:
            for tag in list(self.subscriptions):
                self.basic_cancel(tag)
            if transport.consumes:
                transport.loop.flush_acks()
            if HOST.worker():
                # A running task keeps its message; messages held only by the channel go back.
                self.settlement.let_go()
                transport.consumers.return_abandoned()
            elif self.qos_.delivered:
                self.settlement.give_back("released")
        except BrokerUnavailable as exc:
            logger.info("%s; pending acks are sent over the next connection", exc)
        finally:
            self.collect()
            transport.close_channel(self)

    def collect(self) -> None:
        """Close without contacting the broker; leases last as long as the messages exist."""
        self.closed = self.qos_.closed = True
        self.subscriptions.clear()
        if self.qos_.delivered:
            self.settlement.let_go()


# Assigned here, because inside the class the names would hide the types.
Channel.Message = Message
Channel.QoS = QoS
