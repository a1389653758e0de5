"""QoS: what a channel has delivered and not seen acked, and its prefetch limit."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from kombu.transport import virtual

if TYPE_CHECKING:
    from .message import Message


class QoS(virtual.QoS):
    """The unacked messages of one channel. The leases themselves are the session's."""

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
        return type(self.can_consume) is not MethodType

    def can_consume(self) -> bool:
        """Whether one more message may be delivered. Celery may replace this method."""
        return not self.prefetch_count or len(self.delivered) < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """Return how many more may be delivered; None without a limit."""
        if not self.prefetch_count:
            return None
        return max(self.prefetch_count - len(self.delivered), 0)

    def append(self, message: Message, delivery_tag: str) -> None:
        """Note a message that was handed to the application."""
        self.delivered[delivery_tag] = message

    def get(self, delivery_tag: str) -> Message:
        """Return a message that waits for its ack; raises KeyError."""
        return self.delivered[delivery_tag]

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

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge through the channel, as Kombu's virtual QoS does."""
        self.channel.basic_ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject through the channel."""
        self.channel.basic_reject(delivery_tag, requeue=requeue)

    def restore_unacked(self) -> None:
        """Put every unacked message of the channel back, counted as a failed delivery."""
        self.channel.settlement.give_back("nacked")

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Put every unacked message of the channel back, in order and uncounted."""
        del stderr
        self.channel.settlement.give_back("released")
