"""LateQueues: those of a Celery worker whose node is away as it begins.

The worker begins without them, and consumes from each when its node answers. Postponed says when
each is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, NotFound, logger
from ..store.protocol import goes_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from .declarations import Declarations
    from .link import Link
    from .subscription import Subscription


_AGAIN_S = 1.0

# So long a node is asked for a queue that is to be consumed from; and at most so long after it is
# asked again, if it is away.
NODE_PATIENCE_S, MOST_AWAY_S = 0.2, 4.0


class Postponed(dict[str, tuple[float, float]]):
    """When a queue is tried again: each time twice as late. Of the application's thread."""

    @property
    def due(self) -> bool:
        """Whether it is time to try one of them."""
        return bool(self) and monotonic() >= min(self.values())[0]

    def is_early(self, queue: str) -> bool:
        """Whether it is too early to try *queue* again."""
        return queue in self and monotonic() < self[queue][0]

    def put_off(self, queue: str, most_s: float) -> None:
        """Try *queue* later: after twice as long as the last time, at most *most_s* seconds."""
        after_s = min(2 * self[queue][1], most_s) if queue in self else _AGAIN_S
        self[queue] = monotonic() + after_s, after_s

    def tried(self, then: float) -> None:
        """Note that all that was due *then* was tried: what was and still is, nobody wants."""
        for name in [name for name, (at, _) in self.items() if at <= then]:
            del self[name]


@dataclass(eq=False)
class LateQueues:
    """Subscriptions that are still to begin. Of the application's thread."""

    _link: Link
    _declarations: Declarations
    _postponed: Postponed
    _begin: Callable[[Subscription], None]
    _items: list[Subscription] = field(default_factory=list, init=False)

    def add(self, item: Subscription, reason: str) -> None:
        """Begin with *item* later; *reason*: why."""
        logger.warning(
            "%s; this worker begins without queue %r, and consumes from it when its node answers",
            reason,
            item.queue,
        )
        self._items.append(item)
        self._postponed.put_off(item.queue, MOST_AWAY_S)

    def remove(self, item: Subscription) -> bool:
        """Forget *item*; False where it is none of these."""
        if item not in self._items:
            return False
        self._items.remove(item)
        item.ended()
        return True

    def clear(self) -> None:
        """Forget all of them."""
        for item in list(self._items):
            self.remove(item)

    def begin(self) -> None:
        """Begin with those whose node answers by now."""
        store = self._link.store
        for item in list(self._items):
            if self._postponed.is_early(item.queue):
                continue
            try:
                with store.patience(NODE_PATIENCE_S):
                    self._declarations.declare_owed(item.queue)
                    self._begin(item)
            except BrokerUnavailable:
                if not goes_on(store):
                    raise
                self._postponed.put_off(item.queue, MOST_AWAY_S)
            except NotFound as exc:
                self.remove(item)
                logger.error("its node answers, but this worker does not consume: %s", exc)  # noqa: TRY400 - the message says it all
            else:
                self._items.remove(item)
                self._postponed.pop(item.queue, None)
                logger.info("queue %r: its node answers, this worker consumes from it", item.queue)
