"""The part of the Inspector that pages are made from: bounded looks at what may be very much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from ..routing.partitions import names_of
from ..store.history import PER_BLOCK, thinned
from ..store.inspection import status_of
from ..store.limits import HISTORY_BLOCKS, MINUTE_MS

if TYPE_CHECKING:
    from ..store.history import Snapshot
    from ..store.protocol import Store

KEPT_MS = HISTORY_BLOCKS * PER_BLOCK * MINUTE_MS
"""For so long a queue's history is kept: 72 hours."""


class Looking:
    """Looks at one broker that take no step longer than a few ms, whatever is in a queue."""

    _store: Store

    def history(self, queue: str, since_ms: int | None = None, points: int = 360) -> list[Snapshot]:
        """Return what was counted of *queue* since *since_ms* (broker's clock), oldest first.

        One snapshot a minute, for 72 hours, or at most *points*, each of as many minutes
        as it takes: messages as they were at the end of these, and in all of these published,
        delivered and so on (divide by ``span_ms`` for a rate). Times in which nobody consumed
        from this broker are missing, and nothing is known of temporary queues. Of a queue that is
        divided, the sum of its partitions. Raises NotFound, and ConfigurationError for less
        than one point.
        """
        if points < 1:
            raise ConfigurationError(f"expected points to be at least 1, got: {points}")
        names = names_of(self._store, queue)
        status_of(self._store, names[0])
        now_ms = self._store.now_ms()
        since_ms = max(now_ms - KEPT_MS if since_ms is None else since_ms, now_ms - KEPT_MS)
        minutes = max(now_ms // MINUTE_MS - since_ms // MINUTE_MS, 1)
        # A time that began before it counts too: one more than there is room for, perhaps.
        width = -(-minutes // points) * MINUTE_MS
        parts = [self._store.history(name, since_ms, now_ms) for name in names]
        return thinned(parts, width)[-points:]
