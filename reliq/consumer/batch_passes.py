"""What consumers do for batches now and then: none is forgotten, whoever opened it has died.

Callbacks that are due are published, a batch that nobody sealed is sealed, what is older than its
``batch_ttl`` is removed, and jobs whose messages are nowhere are found. Each batch is given to one
consumer at a time.
"""

from __future__ import annotations

import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ..failover.jitter import JITTER
from ..store.jobs import OPEN, PARENT, Change
from ..store.unreadable import number
from ..transfer.batch_callbacks import publish_due
from .lost_jobs import LostJobs

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from ..store.jobs import BatchRecord
    from ..store.protocol import Store

logger = logging.getLogger("reliq")

_AT_ONCE = 20
_EVERY_S = 30.0
_AGAIN_MS = 20_000
# After a pass over all jobs of a batch the next one waits so long: it reads them all.
_SWEPT_EVERY_S = 300.0
_MOST_REMEMBERED = 1000


class BatchPasses:
    """The passes that one session makes over batches."""

    def __init__(self, later: deque[Callable[[Store], None]]) -> None:
        self._later = later
        self._next = 0.0
        self._next_sweep: dict[str, float] = {}
        self._lost = LostJobs(self.soon)

    def soon(self, batch: str) -> None:
        """Look after *batch* at the next opportunity: something of it may be due."""
        self._later.append(partial(self._look_after, batch))

    def tick(self) -> None:
        """Have those looked at whose turn it is, from time to time."""
        now = monotonic()
        if now >= self._next:
            self._next = now + _EVERY_S * JITTER.uniform(0.8, 1.2)
            self._later.append(self._look)

    def _look(self, store: Store) -> None:
        found = store.batches.next_batches(_AT_ONCE, _AGAIN_MS)
        for batch in found:
            self.soon(batch)
        if len(found) == _AT_ONCE:
            self._later.append(self._look)

    def _look_after(self, batch: str, store: Store) -> None:
        record = store.batches.batch(batch)
        if record is None:
            store.batches.unlist_batch(batch)  # not made yet, or forgotten half way
            return
        publish_due(store, record)
        now_ms = store.now_ms()
        if record.ended_ms:
            if now_ms - record.ended_ms > number(record.fields.get("ttl_ms"), 0):
                store.batches.forget_batch(batch)
            return
        if not record.sealed_ms and self._is_left(store, record, now_ms):
            logger.warning(
                "batch %r (%s) is sealed: its producer has not sealed it, and added nothing for "
                "its seal_timeout",
                batch,
                record.name,
            )
            store.batches.change(batch, (Change("seal"),))
            self.soon(batch)
        self._cancel_with_parent(store, record)
        self._sweep(store, record, now_ms)

    def _cancel_with_parent(self, store: Store, record: BatchRecord) -> None:
        """Cancel a batch whose parent is cancelled."""
        parent = record.fields.get(PARENT)
        if not parent or record.cancelled_ms:
            return
        found = store.batches.batch(parent)
        if found is not None and found.cancelled_ms:
            store.batches.change(record.id, (Change("cancel"),))
            self.soon(record.id)

    @staticmethod
    def _is_left(store: Store, record: BatchRecord, now_ms: int) -> bool:
        timeout_ms = number(record.fields.get("seal_timeout_ms"), 0)
        if not timeout_ms or now_ms - record.created_ms <= timeout_ms:
            return False
        newest_ms = max(
            (job.since_ms for part in store.batches.jobs(record.id) for job in part), default=0
        )
        return now_ms - newest_ms > timeout_ms

    # -- jobs that nobody will end

    def _sweep(self, store: Store, record: BatchRecord, now_ms: int) -> None:
        """Find the open jobs that nobody will end any more, and end them."""
        now = monotonic()
        if now < self._next_sweep.get(record.id, 0.0):
            return
        if len(self._next_sweep) > _MOST_REMEMBERED:
            self._next_sweep = {name: at for name, at in self._next_sweep.items() if at > now}
        self._next_sweep[record.id] = now + _SWEPT_EVERY_S
        if any(record.counts[state] for state in OPEN):
            self._lost.sweep(store, record.id, now_ms)
