"""Message: passed to a consumer's callback. QoS: the unacked messages of a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from kombu.exceptions import DecodeError
from kombu.serialization import loads
from kombu.transport import virtual

from ..interrupts import came_from_outside
from ..message.envelope import fields_of
from ..message.queue_names import queue_of
from ..values.job_headers import BATCH, LEASE
from ..values.values import Lease

if TYPE_CHECKING:
    from collections.abc import Container

    from ..values.job_headers import Outcome
    from ..values.values import Delivery

_LONGEST_ERROR = 1000


def raw_message(delivery: Delivery) -> dict[str, Any]:
    """Return *delivery* as Kombu's raw message; raises EnvelopeError.

    Redeliveries have ``redelivered``, which Celery reads in delivery_info. Failed deliveries are
    counted in the header ``x-delivery-count``.
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
        # The publisher may have copied these from a received message, as Celery's retry does.
        headers.pop("x-delivery-count", None)
        headers.pop("redelivered", None)
    if delivery.failed >= 0:
        info["redelivered"] = headers["redelivered"] = True
        if delivery.failed > 0:
            headers["x-delivery-count"] = delivery.failed
    if BATCH in headers:
        # For the process that runs the task.
        info[LEASE] = [queue_of(delivery.queue), delivery.token]
    return {
        "body": body,
        "content-type": content_type,
        "content-encoding": encoding,
        "headers": headers,
        "properties": properties,
    }


def in_words(error: BaseException) -> str:
    """Return *error* as stored and logged; unprintable characters of a message are escaped."""
    text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Message(virtual.Message):
    """A Kombu message with its lease.

    queue, token: the lease. decode_error: the error of decoding the body. Such a message becomes a
    dead letter when it is acked or rejected: Celery acks unreadable messages, and would lose them.
    """

    queue = ""
    token = ""
    # Text, because an error refers to its frames, and they to the message, which would stay alive.
    decode_error: str | None = None
    malformed = False
    """Whether it made a Celery worker's code raise."""
    error = ""
    """The raised error, as text."""
    callback_raised = False
    """Whether its callback raised, so no code processes it any more."""
    eta: str | None = None
    """For a task in Celery's worker: the eta for which it was delayed at the broker."""

    begun = False
    """For a job, with limits, or after a failure, in a worker: whether the pool has its task."""
    acked_early = False
    """For a task in a worker: whether it is acknowledged when it starts."""
    limited_queues: Container[str] = ()
    """The queues that are known to have limits; empty after the end of its task."""
    outcome: Outcome | None = None
    """The outcome of a task, until it is reported to its batch."""

    def __init__(self, payload: dict[str, Any], channel: Any, **kwargs: Any) -> None:
        headers = payload["headers"]
        if kwargs or "compression" in headers:
            super().__init__(payload, channel=channel, **kwargs)
            if self.errors:
                self.decode_error = in_words(self.errors[0][1])
            return
        # Replaces both base constructors if nothing is compressed: they take a fifth of a delivery.
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
    def lease(self) -> Lease:
        """Its lease, by which it can be returned or dead-lettered."""
        return Lease(self.delivery_tag, self.token)

    @property
    def limited(self) -> bool:
        """Whether its queue has limits. In a worker, its lease then lasts as long as its task."""
        return self.queue in self.limited_queues

    @property
    def failed(self) -> int:
        """How many deliveries have failed."""
        return int(self.headers.get("x-delivery-count", 0))

    @property
    def dead_letter_reason(self) -> tuple[str, str]:
        """The reason and the error text if it becomes a dead letter now, without requeue."""
        if self.decode_error is not None:
            return "undecodable", self.decode_error
        return "malformed" if self.malformed else "rejected", self.error

    def decode(self) -> Any:
        """Return the decoded body, and cache it; records a decoding error.

        Raises an exception of a signal handler as it is, not as a DecodeError.
        """
        if not self._decoded_cache:
            content = self.body, self.content_type, self.content_encoding
            try:
                self._decoded_cache = loads(*content, self.accept)
            except Exception as exc:
                self.decode_error = in_words(exc)  # so that an ack cannot lose it
                if isinstance(exc, DecodeError) and came_from_outside(exc):
                    raise (exc.__context__ or exc) from None
                raise
            if not self.errors:
                self.decode_error = None
        return self._decoded_cache


class QoS(virtual.QoS):
    """The unacked messages of one channel, and its limit. The session owns the leases."""

    def __init__(self, channel: Any) -> None:
        # Does not call the base class, whose finalizer restores messages one by one.
        self.channel = channel
        self.consumers: dict[str, Any] = {}
        """The subscriptions of the channel, by consumer tag."""
        self.closed = False
        """Whether the channel is closed: later acks and returns use another connection."""
        self.prefetch_count = 0
        self.delivered: dict[str, Message] = {}
        # Unacked messages that only the application still references; it may ack them later.
        self._let_go: WeakValueDictionary[str, Message] = WeakValueDictionary()

    def can_consume(self) -> bool:
        """Whether another message may be delivered. Celery may replace this method."""
        return not self.prefetch_count or len(self.delivered) < self.prefetch_count

    def take(self, delivery_tag: str) -> Message | None:
        """Remove and return an unacked message, also one that was let go."""
        message = self.delivered.pop(delivery_tag, None)
        return message if message is not None else self._let_go.pop(delivery_tag, None)

    def put_back(self, message: Message) -> None:
        """Put back a message that could not be settled."""
        messages = self._let_go if self.closed else self.delivered
        messages[message.delivery_tag] = message

    def let_go(self) -> list[Message]:
        """Keep only weak references to the unacked messages; return the messages."""
        messages, self.delivered = self.delivered, {}
        self._let_go.update(messages)
        return list(messages.values())

    def up_to(self, delivery_tag: str) -> list[Message]:
        """Remove and return the message with *delivery_tag* and all earlier deliveries."""
        tags = list(self.delivered)
        end = tags.index(delivery_tag) + 1 if delivery_tag in self.delivered else 0
        return [self.delivered.pop(tag) for tag in tags[:end]]
