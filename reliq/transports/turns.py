"""Turns: the consumers of a transport, in the order in which their queues are served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.utils.scheduling import cycle_by_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .subscription import Subscription


class Turns:
    """Who consumes, and whose turn it is. Changed by the application's thread alone.

    Others may read :attr:`subscriptions` by way of a copy.
    """

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy
        self.split = strategy == "round_robin"
        """Whether the queues share the credit of their channel."""
        self.subscriptions: list[Subscription] = []
        self._begin()

    def _begin(self) -> None:
        self._cycle: Any = cycle_by_name(self._strategy)()
        self._of_queue: dict[str, list[Subscription]] = {}
        for item in self.subscriptions:
            self._of_queue.setdefault(item.queue, []).append(item)
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
        self._cycle.rotate(item.queue)
        others = self._of_queue[item.queue]
        if len(others) > 1:
            others.remove(item)
            others.append(item)
