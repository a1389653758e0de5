"""Receiver: turns deliveries into messages of a channel, and handles errors of its callbacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...consumer.host import HOST
from ...errors import ReliqError
from ...failover.brokers import JITTER
from ...interrupts import came_from_outside
from ...message.envelope import EnvelopeError
from ...routing.partitions import names_of
from ...values.job_headers import LEASE
from ...values.limits import MOST_REMEMBERED
from ..message import Message, raw_message
from ..publish.encoder import ETA, NATIVE_ETA

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Sequence

    from ...values.values import Delivery
    from ..base import Transport
    from ..message import QoS
    from .settlement import Settlement

_LAYOUT_KEPT_S = 5.0


@dataclass(eq=False)
class Receiver:
    """Turns deliveries into the messages of one channel."""

    _channel: Any  # the channel of the messages
    _over: Transport
    _qos: QoS
    _settlement: Settlement
    _places: dict[str, tuple[Sequence[str], float]] = field(default_factory=dict, init=False)

    def get(self, queue: str, no_ack: bool) -> Message | None:
        """Take one message of *queue*, waiting for the reply; return None for an empty queue.

        The search in a divided queue starts at a random partition. Its layout is read every few
        seconds, and again if all known partitions are empty, because others may have been added.
        """
        began_at = monotonic()
        names, requested_at = self._places.get(queue, ((), 0.0))
        if began_at >= requested_at + _LAYOUT_KEPT_S:
            names, requested_at = self._ask_places(queue)
        first = JITTER.randrange(len(names))
        message = self._get_from((*names[first:], *names[:first]), no_ack)
        if message is None and len(names) > 1 and requested_at < began_at:
            new = [name for name in self._ask_places(queue)[0] if name not in names]
            message = self._get_from(new, no_ack)
        return message

    def _ask_places(self, queue: str) -> tuple[Sequence[str], float]:
        if len(self._places) >= MOST_REMEMBERED:
            self._places.clear()
        requested_at = monotonic()
        place = self._places[queue] = names_of(self._over.link.store, queue), requested_at
        return place

    def _get_from(self, places: Iterable[str], no_ack: bool) -> Message | None:
        for queue in places:
            while (reservation := self._over.reserver.get_one(queue, no_ack)).deliveries:
                if not no_ack:
                    self._over.loop.keep_leases()
                message = self.open(reservation.deliveries[0], no_ack)
                if message is not None:
                    return message
        return None

    def deliver(
        self, no_ack: bool, callback: Callable[[Any], Any], buffer: deque[Delivery]
    ) -> None:
        """Pass the first delivery of *buffer* to *callback*; raises the errors of the callback.

        However, if a Celery worker's code raises for its content, the message is returned once,
        and dead-lettered the second time.
        An interrupt before the callback begins leaves the delivery in the buffer.
        """
        delivery = buffer[0]
        try:
            message = self.open(delivery, no_ack)
        except ReliqError:
            buffer.popleft()  # its end returns the message
            raise
        if not buffer or buffer[0] is not delivery:
            return  # a signal handler has delivered it meanwhile
        # Python handles no signal from this line on until the callback begins.
        del buffer[0]
        if message is not None:
            try:
                if not no_ack:
                    self._qos.delivered[message.delivery_tag] = message
                callback(message)
            except BaseException as exc:
                if not self.callback_raised(message, exc, no_ack):
                    raise

    def open(self, delivery: Delivery, no_ack: bool) -> Message | None:
        """Return the message of *delivery*; its lease is held while the message exists.

        Returns None for a dead letter, and for a message that must not run here. Its lease ended
        while it was buffered (it is returned unless another consumer has it), or this process
        still runs it, or has acked it and the ack had not reached the broker.
        """
        link, tag = self._over.link, delivery.tag
        session = link.session
        if tag in session.outbox.unconfirmed:
            session.outbox.ack_later(delivery.queue, (tag,))
            return None
        if tag in session.leases.adrift and session.leases.adopt(tag, delivery.token):
            return None
        try:
            message = Message(raw_message(delivery), channel=self._channel)
        except EnvelopeError as exc:
            self._settlement.dead_letter_undecodable(delivery, exc, no_ack)
            return None
        message.queue, message.token = delivery.queue, delivery.token
        if LEASE in message.delivery_info:  # a job: the register knows this process by its session
            message.delivery_info[LEASE] += [session.id, link.store.broker]
        if NATIVE_ETA in message.headers:
            eta = message.headers.pop(NATIVE_ETA)
            if HOST.takes_from(self._over):
                message.eta = eta  # as a header, the worker would wait for it again
            else:
                message.headers[ETA] = eta
        if not no_ack and not session.leases.keep_while_alive(tag, delivery.token, message):
            session.outbox.return_later((delivery,))
            return None
        message.limited_queues = session.leases.limited
        if session.leases.limited and message.limited and HOST.takes_from(self._over):
            session.leases.note_begun(tag, delivery.token, begun=False)
        return message

    def callback_raised(self, message: Message, error: BaseException, no_ack: bool) -> bool:
        """Record a failed delivery; return False if the caller must raise the exception.

        A Celery worker returns or dead-letters the message. Elsewhere, the delivery counts as
        failed unless it is acked anyway. Lost connections, interrupts and exceptions of signal
        handlers are not counted.
        """
        worker = HOST.takes_from(self._over)
        message.callback_raised = not worker
        not_its_fault = (*self._over.connection_errors, ReliqError)
        if not isinstance(error, Exception) or isinstance(error, not_its_fault):
            return False
        if came_from_outside(error):
            return False
        if not worker:
            if not no_ack:
                leases = self._over.link.session.leases
                leases.delivery_failed(message.delivery_tag, message.token)
            return False
        settled = HOST.dropped(self._over, message, error)
        if settled is None:
            return False
        self._settlement.settle_malformed(message, error, settled or no_ack, no_ack)
        return True
