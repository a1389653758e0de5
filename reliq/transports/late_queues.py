"""LateQueues: queues of a Celery worker whose node is unreachable when the worker starts.

The worker starts without them, and consumes from each when its node answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import NotFound, logger
from ..store.protocol import Attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from .declarations import Declarations
    from .link import Link
    from .subscription import Subscription


_AGAIN_S = 1.0

# Patience with a node when consuming starts, and the longest pause between two attempts.
NODE_PATIENCE_S, MOST_AWAY_S = 0.2, 4.0


class Postponed(dict[str, tuple[float, float]]):
    """The next attempt for each queue; each pause doubles. Belongs to the application's thread."""

    @property
    def due(self) -> bool:
        """Whether an attempt is due."""
        return bool(self) and monotonic() >= min(self.values())[0]

    def is_early(self, queue: str) -> bool:
        """Whether the next attempt for *queue* is not due yet."""
        return queue in self and monotonic() < self[queue][0]

    def put_off(self, queue: str, most_s: float) -> None:
        """Postpone *queue*: double its last pause, up to *most_s* seconds."""
        after_s = min(2 * self[queue][1], most_s) if queue in self else _AGAIN_S
        self[queue] = monotonic() + after_s, after_s

    def tried(self, then: float) -> None:
        """Remove entries that were due *then* and were not tried: they are obsolete."""
        for name in [name for name, (at, _) in self.items() if at <= then]:
            del self[name]


@dataclass(eq=False)
class LateQueues:
    """Subscriptions that have not started yet. Belongs to the application's thread."""

    _link: Link
    _declarations: Declarations
    _postponed: Postponed
    _begin: Callable[[Subscription], None]
    _items: list[Subscription] = field(default_factory=list, init=False)

    def add(self, item: Subscription, reason: str) -> None:
        """Start *item* later; log *reason*."""
        logger.warning(
            "%s; this worker starts without queue %r, and consumes from it when its node answers",
            reason,
            item.queue,
        )
        self._items.append(item)
        self._postponed.put_off(item.queue, MOST_AWAY_S)

    def remove(self, item: Subscription) -> bool:
        """Remove *item*; return False if it is not among them."""
        if item not in self._items:
            return False
        self._items.remove(item)
        item.ended()
        return True

    def clear(self) -> None:
        """Remove all of them."""
        for item in list(self._items):
            self.remove(item)

    def begin(self) -> None:
        """Start the subscriptions whose node answers now."""
        store = self._link.store
        for item in list(self._items):
            if self._postponed.is_early(item.queue):
                continue
            try:
                with Attempt(store, NODE_PATIENCE_S) as attempt:
                    self._declarations.declare_owed(item.queue)
                    self._begin(item)
            except NotFound as exc:
                self.remove(item)
                logger.error("this worker cannot consume although the node answers: %s", exc)  # noqa: TRY400 - the text suffices
                continue
            if attempt.lost:
                self._postponed.put_off(item.queue, MOST_AWAY_S)
                continue
            self._items.remove(item)
            self._postponed.pop(item.queue, None)
            logger.info("queue %r: its node answers, this worker consumes from it", item.queue)
