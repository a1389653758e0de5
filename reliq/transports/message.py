"""Message: what a consumer's callback receives; QoS: which of a channel's wait for an ack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from kombu.serialization import loads
from kombu.transport import virtual

from ..integrations.outcomes import BATCH, LEASE
from ..message.envelope import fields_of
from ..message.queue_names import queue_of

if TYPE_CHECKING:
    from ..integrations.outcomes import Outcome
    from ..store.values import Delivery

_LONGEST_ERROR = 1000


def raw_message(delivery: Delivery) -> dict[str, Any]:
    """Return *delivery* as Kombu's raw message; raises EnvelopeError.

    ``redelivered`` is set in delivery_info, where Celery looks for it, once the
    message was delivered before; the header ``x-delivery-count`` above 0 failures.
    """
    body, content_type, encoding, headers, properties, exchange, routing_key = fields_of(
        delivery.envelope or b""
    )
    properties["delivery_tag"] = delivery.tag
    info = properties["delivery_info"] = {
        "exchange": exchange,
        "routing_key": routing_key,
        "priority": properties.get("priority"),
    }
    if headers:
        # The publisher may have copied these from a message it received: Celery's retry does.
        headers.pop("x-delivery-count", None)
        headers.pop("redelivered", None)
    if delivery.failed >= 0:
        info["redelivered"] = headers["redelivered"] = True
        if delivery.failed > 0:
            headers["x-delivery-count"] = delivery.failed
    if BATCH in headers:
        # For who runs the task, perhaps in another process.
        info[LEASE] = [queue_of(delivery.queue), delivery.token]
    return {
        "body": body,
        "content-type": content_type,
        "content-encoding": encoding,
        "headers": headers,
        "properties": properties,
    }


def in_words(error: BaseException) -> str:
    """Return *error* as it is stored and logged: text of the message in it cannot do harm."""
    text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Message(virtual.Message):
    """A Kombu message that knows its lease.

    queue, token: the lease. decode_error: what went wrong when the body was
    decoded; such a message becomes a dead letter when it is acked or rejected, because
    Celery acks what it cannot read, and it would be lost.
    """

    queue = ""
    token = ""
    # In words: an error leads to its frames, and they to the message, which would live on.
    decode_error: str | None = None
    malformed = False
    """Whether a Celery worker's code raised for it."""
    error = ""
    """What was raised, in words."""
    callback_raised = False
    """Whether the callback that was given it has ended so: nobody works on it."""
    eta: str | None = None
    """Of a task for Celery's worker: which eta it has waited for in the broker."""

    begun = False
    """Of a task in a worker: whether a place of its pool has taken it."""
    acked_early = False
    """Of a task in a worker: whether it is acknowledged as it begins."""
    outcome: Outcome | None = None
    """How a task has ended, until its batch is told."""

    def __init__(self, payload: dict[str, Any], channel: Any, **kwargs: Any) -> None:
        headers = payload["headers"]
        if kwargs or "compression" in headers:
            super().__init__(payload, channel=channel, **kwargs)
            if self.errors:
                self.decode_error = in_words(self.errors[0][1])
            return
        # What the two base constructors come to where nothing is compressed: they
        # would take a fifth of the time of a delivery.
        properties, body = payload["properties"], payload["body"]
        self._raw = payload
        self.errors: list[Any] = []
        self.channel = channel
        self.delivery_tag = properties["delivery_tag"]
        self.content_type = payload["content-type"]
        self.content_encoding = payload["content-encoding"]
        self.delivery_info = properties["delivery_info"]
        self.headers = headers
        self.properties = properties
        self.body = body.encode() if isinstance(body, str) else body
        self.accept = None
        self._decoded_cache = None
        self._state = "RECEIVED"

    @property
    def verdict(self) -> tuple[str, str]:
        """Why it becomes a dead letter, and the error in words: now, without requeue."""
        if self.decode_error is not None:
            return "undecodable", self.decode_error
        return "malformed" if self.malformed else "rejected", self.error

    def tell_outcome(self) -> None:
        """Have the batch told how the task has ended: it was acknowledged before."""
        self.channel.settlement.jobs.tell(self)

    def decode(self) -> Any:
        """Return the body as it was sent, and keep it; notes why it cannot be decoded."""
        if not self._decoded_cache:
            content = self.body, self.content_type, self.content_encoding
            try:
                self._decoded_cache = loads(*content, self.accept)
            except Exception as exc:
                self.decode_error = in_words(exc)
                raise
        return self._decoded_cache


class QoS(virtual.QoS):
    """The unacked messages of one channel, and its limit. The leases are the session's."""

    def __init__(self, channel: Any) -> None:
        # Not the base's: it would restore messages from a finalizer, one by one.
        self.channel = channel
        self.consumers: dict[str, Any] = {}
        """By tag, the subscriptions of the channel."""
        self.closed = False
        """Whether the channel is: what is settled from then on goes over another connection."""
        self.prefetch_count = 0
        self.delivered: dict[str, Message] = {}
        # Unacked messages that only the application holds now: it may still ack them.
        self._let_go: WeakValueDictionary[str, Message] = WeakValueDictionary()

    @property
    def one_by_one(self) -> bool:
        """Whether no message is reserved ahead: Celery's worker_disable_prefetch."""
        return getattr(self.can_consume, "__func__", None) is not QoS.can_consume

    def can_consume(self) -> bool:
        """Whether one more message may be delivered. Celery may replace this method."""
        return not self.prefetch_count or len(self.delivered) < self.prefetch_count

    def take(self, delivery_tag: str) -> Message | None:
        """Take out a message that waits for its ack, also one that was let go."""
        message = self.delivered.pop(delivery_tag, None)
        return message if message is not None else self._let_go.pop(delivery_tag, None)

    def put_back(self, message: Message) -> None:
        """Have a message again that could not be settled."""
        messages = self._let_go if self.closed else self.delivered
        messages[message.delivery_tag] = message

    def let_go(self) -> list[Message]:
        """Keep unacked messages only while somebody else has them; return them."""
        messages, self.delivered = self.delivered, {}
        self._let_go.update(messages)
        return list(messages.values())

    def up_to(self, delivery_tag: str) -> list[Message]:
        """Take out the message with *delivery_tag* and all delivered before it."""
        tags = list(self.delivered)
        end = tags.index(delivery_tag) + 1 if delivery_tag in self.delivered else 0
        return [self.delivered.pop(tag) for tag in tags[:end]]
