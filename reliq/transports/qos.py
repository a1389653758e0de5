"""QoS: what a channel has delivered and not seen acked, and its prefetch credit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from kombu.transport import virtual

if TYPE_CHECKING:
    from collections import deque

    from ..store.values import Delivery
    from .message import Message


class Reserved(Protocol):
    """The messages reserved for one consumer, and those asked for: a subscription."""

    no_ack: bool
    buffer: deque[Delivery]
    asked_for: int


class QoS(virtual.QoS):
    """Prefetch credit of one channel. The leases themselves are the session's."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        # Not the base's: it would restore messages from a finalizer, one by one.
        self.channel = channel
        self.consumers: dict[str, Any] = {}
        """By tag, the subscriptions of the channel."""
        self.closed = False
        """Whether the channel is: what is settled from then on goes over another connection."""
        self.prefetch_count = prefetch_count or 0
        self.delivered: dict[str, Message] = {}
        # Unacked messages that only the application holds now: it may still ack them.
        self._let_go: WeakValueDictionary[str, Message] = WeakValueDictionary()

    @property
    def undelivered(self) -> int:
        """How many messages are reserved for the channel and not delivered yet."""
        return sum(len(item.buffer) for item in self.consumers.values() if not item.no_ack)

    @property
    def surplus(self) -> int:
        """How many messages there are for which the limit leaves no room."""
        if not self.prefetch_count:
            return 0
        return max(len(self.delivered) + self.undelivered - self.prefetch_count, 0)

    @property
    def reserved(self) -> int:
        """How many messages are asked for, or here and not delivered yet.

        Added up from what each consumer knows: another thread may read a reply meanwhile,
        and a count that two threads keep goes wrong for good.
        """
        return sum(
            len(item.buffer) + item.asked_for for item in self.consumers.values() if not item.no_ack
        )

    @property
    def _one_by_one(self) -> bool:
        return "can_consume" in vars(self)  # Celery's worker_disable_prefetch

    @property
    def limited(self) -> bool:
        """Whether there is a limit to what may be unacked."""
        return bool(self.prefetch_count) or self._one_by_one

    def can_consume(self) -> bool:
        """Whether one more message may be delivered. Celery may replace this method."""
        return not self.prefetch_count or len(self.delivered) < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """Return how many more may be delivered; None without a limit."""
        if not self.prefetch_count:
            return None
        return max(self.prefetch_count - len(self.delivered), 0)

    def credit(self, most: int) -> int:
        """Return how many messages may be reserved now, at most *most*."""
        if not self.can_consume():
            return 0
        if self._one_by_one:
            return 0 if self.reserved else 1
        if not self.prefetch_count:
            return most
        return min(self.prefetch_count - len(self.delivered) - self.reserved, most)

    def well_stocked(self, most: int) -> bool:
        """Whether at least half of what may be reserved, at most *most*, is here or asked for."""
        return self.reserved * 2 >= min(self.prefetch_count or most, most)

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
        taken: list[Message] = []
        if delivery_tag in self.delivered:
            for tag in list(self.delivered):
                taken.append(self.delivered.pop(tag))
                if tag == delivery_tag:
                    break
        return taken

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
