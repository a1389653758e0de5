"""Channel: AMQP's verbs over a store. Kombu's design, engine-free."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from kombu.transport import virtual

from ..consumer import log_events
from ..errors import BrokerUnavailable, ReliqError
from ..forks import here
from ..integrations.celery import WATCH
from ..message.envelope import EnvelopeError
from .client import Client
from .confirming import by_default
from .declaring import Declaring
from .delay import ETA, NATIVE_ETA
from .message import Message, in_words, raw_message
from .publishing import Publishing, PublishingTransport
from .qos import QoS
from .settlement import Settlement, SettlingTransport, leases_of
from .subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..store.protocol import Store
    from ..store.values import Delivery, How
    from .consumers import Consumers

logger = logging.getLogger("reliq")


class ChannelTransport(PublishingTransport, SettlingTransport, Protocol):
    """What a channel needs of its transport."""

    consumers: Consumers
    connection_errors: tuple[type[Exception], ...]

    def ack(self, queue: str, tags: Sequence[str]) -> None:
        """Finish messages, now or at the end of this tick of the loop."""

    def close_channel(self, channel: Channel) -> None:
        """Forget a closed channel."""


class Channel(Publishing, Declaring, virtual.Channel):
    """One channel of a transport. Messages belong to it from delivery to ack."""

    supports_fanout = True
    do_restore = True

    def __init__(self, connection: ChannelTransport, **_: Any) -> None:
        # Not the base's: no exchange classes, and options are parsed once for all.
        self.connection: ChannelTransport | None = connection
        self.transport: ChannelTransport = connection
        self.options = connection.options
        self.confirmation = by_default(self.options)
        self.closed = False
        self.qos_ = QoS(self)
        self._settlement = Settlement(self)
        self.no_ack_consumers: set[str] = set()
        self.subscriptions: dict[str, Subscription] = {}
        # Unacked messages that only the application holds now: it may still ack them.
        self._let_go: WeakValueDictionary[str, Message] = WeakValueDictionary()
        self.channel_id = self._get_free_channel_id()

    @property
    def qos(self) -> QoS:
        """The credit of this channel."""
        return self.qos_

    # -- what probes for Kombu's Redis transport ask

    @property
    def client(self) -> Client:
        """What answers ``ping()`` and ``llen(queue)``, and names who answers the rest.

        Not kept: Celery looks for a socket in a channel's own ``client``.
        """
        return Client(self.transport.link.store)

    @contextmanager
    def conn_or_acquire(self, client: Client | None = None) -> Iterator[Client]:
        """Give *client*, or :attr:`client`, to a block."""
        yield client or self.client

    # -- publishing

    def prepare_message(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Make Kombu's raw message; before that, fail back where that is due.

        It is the first thing that Kombu does to publish: what is declared next is
        declared where the message goes.
        """
        failback = self.transport.failback
        if failback.urls:
            failback.fail_back()
        prepared: dict[str, Any] = super().prepare_message(*args, **kwargs)
        return prepared

    # -- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **_: Any
    ) -> str:
        """Begin to deliver messages of *queue* to *callback*; raises NotFound for no queue."""
        transport = self.transport
        subscription = Subscription(
            self,
            queue,
            consumer_tag,
            bool(no_ack),
            callback,
            transport.link.session,
            transport.isolated,
        )
        transport.consumers.add(subscription)
        self.subscriptions[consumer_tag] = subscription
        if no_ack:
            self.no_ack_consumers.add(consumer_tag)
        return consumer_tag

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        """Stop a consumer; what was reserved for it and not delivered goes back at once."""
        here()  # a child has none of its parent's consumers, nor of its messages
        subscription = self.subscriptions.pop(consumer_tag, None)
        self.no_ack_consumers.discard(consumer_tag)
        if subscription is not None and not self.closed:
            self.transport.consumers.remove(subscription)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Message | None:
        """Take one message of *queue*; None when it is empty."""
        while True:
            reservation = self.transport.reserver.get_one(queue, no_ack)
            if not reservation.deliveries:
                return None
            if not no_ack:
                self.transport.loop.keep_leases()
            message = self.open_delivery(reservation.deliveries[0], no_ack)
            if message is not None:
                return message

    def open_delivery(self, delivery: Delivery, no_ack: bool) -> Message | None:
        """Return the message in *delivery*, now this channel's; None: it is a dead letter."""
        try:
            message = Message(raw_message(delivery), channel=self)
        except EnvelopeError as exc:
            self._settlement.dead_letter_undecodable(delivery, exc, no_ack)
            return None
        message.queue, message.token = delivery.queue, delivery.token
        eta = message.headers.pop(NATIVE_ETA, None)
        if eta is not None:
            if WATCH.takes_from(self.transport):
                message.eta = eta  # among the headers it would be held for that again
            else:
                message.headers[ETA] = eta
        if not no_ack:
            self.qos_.append(message, delivery.tag)
            leases = self.transport.link.session.leases
            leases.keep_while_alive(delivery.tag, delivery.token, message)
        return message

    def callback_raised(self, message: Message, error: BaseException, no_ack: bool) -> bool:
        """Note a failed delivery; False where the application is to have the exception.

        In a Celery worker the message becomes a dead letter. Elsewhere the delivery
        counts as failed, unless the message is acknowledged in spite of it. A lost
        connection is nobody's fault, nor is an interrupt.
        """
        worker = WATCH.takes_from(self.transport)
        message.callback_raised = not worker
        if not isinstance(error, Exception) or isinstance(
            error, (*self.transport.connection_errors, ReliqError)
        ):
            return False
        if not worker:
            if not no_ack:
                leases = self.transport.link.session.leases
                leases.delivery_failed(message.delivery_tag, message.token)
            return False
        settled = WATCH.dead_lettered(self.transport, message, error)
        if settled is None:
            return False
        self.dead_letter_malformed(message, error, settled or no_ack, no_ack)
        return True

    def dead_letter_malformed(
        self, message: Message, error: Exception, settled: bool, no_ack: bool = False
    ) -> None:
        """Dead-letter a message that made a Celery worker's code raise, unless it is *settled*."""
        message.malformed, message.error = True, in_words(error)
        if settled or self._take(message.delivery_tag) is None:
            _, text = message.verdict
            log_events.raised(message.queue, message.delivery_tag, text, no_ack)
            return
        self._settlement.dead_letter([message])

    # -- finishing

    def _take(self, delivery_tag: str) -> Message | None:
        """Take out a message that waits for its ack, also one from before the channel closed."""
        message = self.qos_.delivered.pop(delivery_tag, None)
        return message if message is not None else self._let_go.pop(delivery_tag, None)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge; written to the socket at once, confirmed later.

        Raises BrokerTimeout when the broker has not answered for ``socket_timeout``.
        """
        here()
        if not multiple:  # the hot path: one message that could be read
            message = self._take(delivery_tag)
            if message is None:
                return
            if message.decode_error is None:
                if self.closed:
                    self.transport.link.session.outbox.ack_later(message.queue, (delivery_tag,))
                else:
                    self.transport.ack(message.queue, (delivery_tag,))
                return
            messages = [message]
        else:
            messages = self.qos_.up_to(delivery_tag)
        unreadable = [message for message in messages if message.decode_error is not None]
        for queue, tags in _by_queue([m for m in messages if m.decode_error is None]):
            self.transport.ack(queue, tags)
        if unreadable:
            self._settlement.dead_letter(unreadable)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Put a message back, counted as a failed delivery, or give up on it (dead letters).

        Refused, and logged, when the lease was lost meanwhile.
        """
        here()
        message = self._take(delivery_tag)
        messages = [] if message is None else [message]
        error = sys.exc_info()[1]
        if message is not None and error is not None and WATCH.takes_from(self.transport):
            message.error = in_words(error)  # Celery rejects what it cannot understand
        if requeue:
            self._settlement.release("nacked", messages)
        else:
            self._settlement.dead_letter(messages)
        self.transport.deliverer.credit_regained()

    def basic_recover(self, requeue: bool = False) -> None:
        """Put every unacked message of this channel back, counted."""
        if not requeue:
            raise NotImplementedError("basic.recover is only possible with requeue=True")
        self.give_back("nacked")

    def give_back(self, how: How) -> None:
        """Put every unacked message of this channel back."""
        here()
        messages = list(self.qos_.delivered.values())
        self.qos_.delivered.clear()
        for kind, some in self._by_how(how, messages):
            self._settlement.release(kind, some)
        self.transport.deliverer.credit_regained()

    def open_store(self) -> Store:
        """Return a connection that works also after this channel was closed."""
        link = self.transport.link
        return link.session.spare_store() if self.closed else link.store

    def keep_unsettled(self, message: Message) -> None:
        """Have a message again that could not be settled."""
        messages = self._let_go if self.closed else self.qos_.delivered
        messages[message.delivery_tag] = message

    # -- credit

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set the prefetch limit; what was reserved beyond it and not delivered goes back."""
        del prefetch_size, apply_global
        self.qos_.prefetch_count = prefetch_count
        self.transport.deliverer.credit_changed(self, self.qos_.surplus)

    def flow(self, active: bool = True) -> None:
        """Pause and resume are not part of this transport."""
        raise NotImplementedError("flow control is not supported; use basic_qos")

    # -- the end

    def close(self) -> None:
        """Cancel all consumers and return what is unacked, uncounted.

        Never raises for a dead broker.
        """
        if self.closed:
            return
        here()
        transport = self.transport
        try:
            for tag in list(self.subscriptions):
                self.basic_cancel(tag)
            transport.loop.flush_acks()
            if WATCH.worker:
                # A running task keeps its message; what only we still know goes back.
                self.let_messages_go()
                transport.consumers.return_abandoned()
            else:
                self.give_back("released")
        except BrokerUnavailable as exc:
            logger.info("%s; what is owed goes out over the next connection", exc)
        finally:
            self.collect()
            transport.close_channel(self)

    def collect(self) -> None:
        """Let go without a word to the broker: leases stay while the messages live."""
        self.closed = True
        self.subscriptions.clear()
        self.let_messages_go()

    def let_messages_go(self) -> None:
        """Keep the leases of unacked messages only while somebody else has the messages.

        Who has only the error that a callback raised, a log for example, has its message too,
        and nobody works on that: it goes back as soon as the broker can be told.
        """
        messages, self.qos_.delivered = self.qos_.delivered, {}
        self._let_go.update(messages)
        left = [message for message in messages.values() if message.callback_raised]
        for how, some in self._by_how("released", left):
            for queue, leases in leases_of(some):
                self.transport.link.session.outbox.release_later(queue, how, leases)

    def _by_how(self, how: How, messages: list[Message]) -> Iterable[tuple[How, list[Message]]]:
        """Yield *messages* by how they go back: *how*, but counted where a delivery failed."""
        failed = [
            message
            for message in messages
            if self.transport.link.session.leases.failed(message.delivery_tag)
        ]
        if how != "released" or not failed:
            return [(how, messages)]
        rest = [message for message in messages if message not in failed]
        return [("nacked", failed), (how, rest)]


def _by_queue(messages: list[Message]) -> Iterable[tuple[str, list[str]]]:
    for queue, group in groupby(messages, attrgetter("queue")):
        yield queue, [message.delivery_tag for message in group]


# Set here, because inside the class the names would hide the types.
Channel.Message = Message
Channel.QoS = QoS
