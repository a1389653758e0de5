"""Subscription: one consumer of one queue. Schedule: the order in which they are served."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from kombu.utils.scheduling import cycle_by_name

from ...errors import ReliqError
from ...lazy import Lazy
from ...message.queue_names import queue_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...consumer.sessions import Session
    from ...values.protocol import Store
    from ...values.values import Delivery, Promoted, Reservation
    from ..message import QoS
    from .feed import Feed

# A reply that is read later than this after its request counts as old.
_PROMPT_S = 0.05
# The shortest interval between promotions for others by a subscription without credit.
_PROMOTE_EVERY_S = 0.05


@dataclass(eq=False)
class Subscription:
    """The state of one ``basic_consume``."""

    qos: QoS
    deliver: Callable[[deque[Delivery]], None]
    """Passes the first of the deliveries to the application; the caller handles its errors."""
    queue: str
    """The queue, or one of the partitions of a divided queue."""
    tag: str
    no_ack: bool
    session: Session
    partitions: dict[str, Subscription] = field(default_factory=dict, init=False)
    """By name, the subscriptions of the other partitions of its queue."""
    buffer: deque[Delivery] = field(default_factory=deque, init=False)
    began_at: float = field(default_factory=monotonic, init=False)
    requested_at: float = field(default=0.0, init=False)
    due_at: float | None = field(default=None, init=False)
    requested: int = field(default=0, init=False)
    """How many messages the pending reserve may bring."""
    heard: bool = field(default=False, init=False)
    """Whether the broker has ever answered a reserve."""
    refused: bool = field(default=False, init=False)
    """Whether the broker refuses reserves now."""
    feed: Feed | None = field(default=None, init=False)
    """Its place in the log of an exchange."""
    behind: bool = field(default=False, init=False)
    """Whether the credit of its channel belongs to a queue that comes before it."""

    def __post_init__(self) -> None:
        """Notify the session if the subscription is collected without being cancelled."""
        self.of_queue = queue_of(self.queue)
        self._wanted = True
        self._batch = 0
        dropped = self.session.registration.subscription_dropped
        self._dropped = weakref.finalize(self, dropped, self.queue, self.no_ack, self.buffer)
        self._dropped.atexit = False

    @property
    def is_divided(self) -> bool:
        """Whether it consumes from one of several partitions."""
        return bool(self.partitions) or self.queue != self.of_queue

    @property
    def in_flight(self) -> bool:
        """Whether a reserve is in progress."""
        return self.requested > 0

    @property
    def wanted(self) -> bool:
        """Whether the broker may have messages for it."""
        return self._wanted or self.due

    @property
    def due(self) -> bool:
        """Whether a delayed message has become due since the last reserve."""
        return self.due_at is not None and monotonic() >= self.due_at

    def want(self) -> None:
        """Reserve at the next opportunity."""
        self._wanted = True

    def can_deliver(self) -> bool:
        """Whether a buffered message may be delivered now."""
        return bool(self.buffer) and (self.no_ack or self.qos.can_consume())

    @property
    def stocked(self) -> bool:
        """Whether more than half of the last messages are still buffered."""
        return len(self.buffer) > self._batch // 2

    @property
    def running_low(self) -> bool:
        """Whether to reserve now, so that the next messages arrive in time."""
        return self._wanted and self.requested <= 0 and len(self.buffer) <= self._batch // 2

    def note_request(self, n: int) -> None:
        """Record that a reserve of up to *n* messages is in progress."""
        self.requested = n
        self._wanted = False
        self.requested_at = monotonic()

    def unanswered(self) -> None:
        """Record that the reserve ended without a reply, so that it is repeated."""
        self.requested = 0
        self._wanted = True

    def put_off(self, seconds: float) -> None:
        """Record a refusal, and reserve again after *seconds*."""
        self.refused = True
        self.due_at = monotonic() + seconds
        self.requested = 0

    def reserved(self, reservation: Reservation) -> None:
        """Process the reply to a reserve."""
        self.heard, self.refused = True, False
        self._wanted = self._wanted or reservation.left
        # The reply may have been unread while the application was busy.
        self._note_due(reservation.next_due_ms, min(monotonic(), self.requested_at + _PROMPT_S))
        self.buffer.extend(reservation.deliveries)
        self._batch = len(reservation.deliveries)
        self.requested = 0  # last: a concurrent sum may count these twice, but never miss them

    def promoted(self, promoted: Promoted | ReliqError) -> None:
        """Process the reply to a promotion for others."""
        if isinstance(promoted, ReliqError):
            self._wanted = True
            return
        self._wanted = self._wanted or promoted.left
        self._note_due(promoted.next_due_ms, monotonic())
        if self.due_at is not None:
            self.due_at = max(self.due_at, monotonic() + _PROMOTE_EVERY_S)

    def _note_due(self, next_due_ms: int, when: float) -> None:
        self.due_at = when + next_due_ms / 1000 if next_due_ms >= 0 else None

    def ended(self) -> None:
        """Record that it was cancelled in order."""
        self._dropped.detach()
        for item in self.partitions.values():
            item.ended()

    def take_back(self, most: int | None = None) -> list[Delivery]:
        """Remove undelivered messages, at most *most*, the last reserved first."""
        here = len(self.buffer)
        return [self.buffer.pop() for _ in range(here if most is None else min(most, here))]


# How often a queue without a listening notifier is queried while other queues stay busy.
_UNHEARD_S = 1.0


@dataclass(eq=False)
class Schedule:
    """The order of turns. Application thread only; others read a copy of the subscriptions."""

    _strategy: str
    subscriptions: list[Subscription] = field(default_factory=list, init=False)
    only: Subscription | None = field(default=None, init=False)
    """The subscription, if there is only one."""
    fed: list[tuple[Subscription, Feed]] = field(default_factory=list, init=False)
    """The subscriptions that read the log of an exchange."""
    heard_at: float = field(default=0.0, init=False)
    """When the last wait for notifications ended."""
    deserted: bool = field(default=False, init=False)
    """Whether the last attempt to reconnect failed while there were consumers."""
    loss_reported: bool = field(default=False, init=False)
    """Whether the application was notified that the consumers' connection is lost."""
    _of_queue: dict[str, list[Subscription]] = field(default_factory=dict, init=False)

    @Lazy
    def is_round_robin(self) -> bool:
        """Whether the queues take turns."""
        return self._strategy == "round_robin"

    def _begin(self) -> None:
        self._cycle: Any = cycle_by_name(self._strategy)()
        self.only = self.subscriptions[0] if len(self.subscriptions) == 1 else None
        self.fed = [(item, item.feed) for item in self.subscriptions if item.feed is not None]
        self._of_queue = {}
        for item in self.subscriptions:
            item.behind = False
            self._of_queue.setdefault(item.of_queue, []).append(item)
        self._cycle.update(self._of_queue)

    def add(self, item: Subscription) -> None:
        """Add *item*."""
        self.subscriptions.append(item)
        self._begin()

    def remove(self, item: Subscription) -> None:
        """Remove *item*."""
        self.subscriptions.remove(item)
        self._begin()

    def clear(self) -> None:
        """Remove all subscriptions."""
        self.subscriptions.clear()
        self._begin()

    def in_order(self) -> Iterator[Subscription]:
        """Return the subscriptions in the order of their turns."""
        if len(self.subscriptions) < 2:  # noqa: PLR2004 - nothing to order
            return iter(self.subscriptions)
        turn = self._cycle.consume(len(self._of_queue))
        return (item for queue in turn for item in self._of_queue[queue])

    def next(self, item: Subscription) -> None:
        """Record that *item* has its turn now, one of several."""
        self._cycle.rotate(item.of_queue)
        others = self._of_queue[item.of_queue]
        # One partition after the other, each until its buffered messages are delivered: this takes
        # fewer steps, of more messages each, than alternating with each message.
        if len(others) > 1 and (len(item.buffer) <= 1 or not item.is_divided):
            others.remove(item)
            others.append(item)

    def wanting(self, store: Store) -> list[Subscription]:
        """Return, in order, the subscriptions for which the broker may have messages."""
        unheard = self._unheard(store)
        if not self.is_round_robin:
            return self._next_of(self._by_rank(store, unheard))
        ready = [
            item
            for item in self.in_order()
            if not item.buffer and not item.in_flight and (item.wanted or item.queue in unheard)
        ]
        return ready if len(self._of_queue) == len(self.subscriptions) else self._next_of(ready)

    def _by_rank(self, store: Store, unheard: set[str]) -> list[Subscription]:
        """Return those to ask, and note which are behind a queue that may have messages.

        On each channel, the first queue that is not known to be empty has all the credit, even
        while some of its messages are buffered. A queue is known to be empty if a wait for its
        notification is in progress, or if it was asked after the last request to a queue behind it.
        """
        notifier = store.notifier
        heard = notifier.queues if notifier.listening else ()
        ahead_or_due: list[Subscription] = []
        first: dict[QoS, str] = {}
        ahead: dict[QoS, list[Subscription]] = {}
        for item in self.in_order():
            qos, queue, wanted = item.qos, item.of_queue, item.wanted or item.queue in unheard
            before = ahead.setdefault(qos, [])
            item.behind = first.get(qos, queue) != queue
            if wanted and not item.in_flight and not item.stocked:
                for other in () if item.behind else before:
                    unsure = other.requested_at <= item.requested_at and other.queue not in heard
                    if unsure and other.of_queue != queue and not other.refused:
                        ahead_or_due.append(other)
                        first[qos] = other.of_queue
                        item.behind = True
                        break
                ahead_or_due.append(item)  # if it is behind, for its due messages only
            if wanted or item.in_flight:
                first.setdefault(qos, queue)
            before.append(item)
        return ahead_or_due

    def _next_of(self, candidates: Sequence[Subscription]) -> list[Subscription]:
        """Keep only the next partition if another one has buffered or requested messages."""
        stocked = {
            (item.qos, item.tag)
            for item in self.subscriptions
            if item.is_divided and (item.buffer or item.in_flight)
        }
        left: list[Subscription] = []
        served: set[tuple[QoS, str]] = set()
        for item in candidates:
            consumer = (item.qos, item.tag)
            if consumer not in stocked or consumer not in served:
                left.append(item)
            served.add(consumer)
        return left

    def _unheard(self, store: Store) -> set[str]:
        """Return the queues whose notifications are missed, because others keep this one busy.

        A wait starts once all queues are empty. If one never is, the others are queried regularly.
        """
        subscriptions = self.subscriptions
        before = monotonic() - _UNHEARD_S
        if (
            len(subscriptions) < 2  # noqa: PLR2004 - there is no other
            or self.heard_at >= before
            or not any(item.buffer or item.in_flight or item.wanted for item in subscriptions)
        ):
            return set()
        notifier = store.notifier
        heard = notifier.queues if notifier.listening else ()
        return {
            item.queue
            for item in subscriptions
            if item.requested_at < before and item.queue not in heard
        }
