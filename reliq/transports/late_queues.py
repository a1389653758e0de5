"""LateQueues: those of a Celery worker whose node is away as it begins.

The worker begins without them, and consumes from each when its node answers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, NotFound
from ..store.nodes import goes_on
from .postponed import MOST_AWAY_S, NODE_PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from .declarations import Declarations
    from .link import Link
    from .postponed import Postponed
    from .subscription import Subscription

logger = logging.getLogger("reliq")


class LateQueues:
    """Subscriptions that are still to begin. Of the application's thread."""

    def __init__(
        self,
        link: Link,
        declarations: Declarations,
        postponed: Postponed,
        begin: Callable[[Subscription], None],
    ) -> None:
        self._link = link
        self._declarations = declarations
        self._postponed = postponed
        self._begin = begin
        self._items: list[Subscription] = []

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
                self._postponed.done(item.queue)
                logger.info("queue %r: its node answers, this worker consumes from it", item.queue)
