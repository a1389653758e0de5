"""Schedule: the consumers of a transport, whose turn it is, and for whom to ask."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from kombu.utils.scheduling import cycle_by_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..store.protocol import Store
    from .qos import QoS
    from .subscription import Subscription

# While some queues keep a consumer busy, one whose notification is unheard is asked so often.
_UNHEARD_S = 1.0


class Schedule:
    """Who consumes, and whose turn it is. Changed by the application's thread alone.

    Others may read :attr:`subscriptions` by way of a copy.
    """

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy
        self.subscriptions: list[Subscription] = []
        self.heard_at = 0.0
        """When a wait for notifications ended last."""
        self.deserted = False
        """Whether there were consumers as the broker could not be reached again."""
        self.loss_told = False
        """Whether the application was told that the consumers' connection is lost."""
        self._begin()

    def _begin(self) -> None:
        self._cycle: Any = cycle_by_name(self._strategy)()
        self.only = self.subscriptions[0] if len(self.subscriptions) == 1 else None
        """The subscription, where there is but one."""
        self._of_queue: dict[str, list[Subscription]] = {}
        for item in self.subscriptions:
            self._of_queue.setdefault(item.of_queue, []).append(item)
        self._cycle.update(self._of_queue)

    def add(self, item: Subscription) -> None:
        """Serve *item*, too."""
        self.subscriptions.append(item)
        self._begin()

    def remove(self, item: Subscription) -> None:
        """Serve *item* no longer."""
        self.subscriptions.remove(item)
        self._begin()

    def clear(self) -> None:
        """Serve nobody."""
        self.subscriptions.clear()
        self._begin()

    def in_order(self) -> Iterator[Subscription]:
        """Return the subscriptions, the one whose turn it is first."""
        if len(self.subscriptions) < 2:  # noqa: PLR2004 - nothing to order
            return iter(self.subscriptions)
        turn = self._cycle.consume(len(self._of_queue))
        return (item for queue in turn for item in self._of_queue[queue])

    def next(self, item: Subscription) -> None:
        """Note that *item* has its turn now, one of several."""
        self._cycle.rotate(item.of_queue)
        others = self._of_queue[item.of_queue]
        # One partition after the other, each until what is here of it is delivered: so there are
        # fewer steps, of more messages each, than if they took turns with each message.
        if len(others) > 1 and (len(item.buffer) <= 1 or not item.is_divided):
            others.remove(item)
            others.append(item)

    # -- who is to be asked for

    def wanting(self, store: Store) -> list[Subscription]:
        """Return, in order, those for which the broker may have something."""
        unheard = self._unheard(store)
        found = [
            item
            for item in self.in_order()
            if not item.buffer and not item.in_flight and (item.wanted or item.queue in unheard)
        ]
        return found if len(self._of_queue) == len(self.subscriptions) else self._next_of(found)

    def _next_of(self, found: Sequence[Subscription]) -> list[Subscription]:
        """Leave out all but the next partition where something of another is here or on its way."""
        stocked = {
            (item.qos, item.tag)
            for item in self.subscriptions
            if item.is_divided and (item.buffer or item.in_flight)
        }
        left: list[Subscription] = []
        asked: set[tuple[QoS, str]] = set()
        for item in found:
            consumer = (item.qos, item.tag)
            if consumer not in stocked or consumer not in asked:
                left.append(item)
            asked.add(consumer)
        return left

    def _unheard(self, store: Store) -> set[str]:
        """Return the queues whose notification nobody hears: others keep this consumer busy.

        A wait begins when all were found empty; where one never is, the rest have to be
        asked from time to time.
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
            if item.asked_at < before and item.queue not in heard
        }
