"""What consumers do for batches now and then: none is forgotten, whoever opened it has died.

Callbacks that are due are published, a batch that nobody sealed is sealed, what is older than its
``batch_ttl`` is removed, and jobs whose messages are nowhere are found. Each batch is given to one
consumer at a time.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, logger
from ..failover.brokers import JITTER
from ..store.jobs import OPEN, PARENT, BatchRecord, Change
from ..store.protocol import goes_on
from ..store.unreadable import number
from ..transfer.batch_callbacks import publish_due
from .lost_jobs import MISSING_MS, Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..store.protocol import Deferred, Store


_AT_ONCE = 200
_EVERY_S = 30.0
_AGAIN_MS = 20_000
# A batch that has ended and is kept is looked at this often: a replayed job may have made a
# callback due, and whoever was to publish it may have died.
_RESTS_MS = 600_000
# After a pass over all jobs of a batch the next one waits so long: it reads them all.
_SWEPT_EVERY_S = 300.0
_MOST_REMEMBERED = 1000
# So long is spent on such passes in a tick: leases are renewed in between, messages delivered.
_AT_A_TIME_S = 0.05


class BatchPasses:
    """The passes that one session makes over batches."""

    def __init__(self, deferred: Deferred, runs: Callable[[str], Collection[str] | None]) -> None:
        """Append to *deferred*; *runs* names the jobs of a worker that is of this process."""
        self._deferred = deferred
        self._next = 0.0
        self._next_sweep: dict[str, float] = {}
        self._doubted: dict[str, int] = {}
        self._runs = runs
        self._sweeps: deque[tuple[str, Sweep]] = deque()

    def soon(self, batch: str) -> None:
        """Look after *batch* at the next opportunity: something of it may be due."""
        self._deferred.append(partial(self._look_after, batch))

    def look_soon(self) -> None:
        """Have those looked at whose turn it is at the next opportunity."""
        self._deferred.append(self._look)

    @property
    def sweeps(self) -> bool:
        """Whether looks at all jobs of batches are under way, which ticks go on with."""
        return bool(self._sweeps)

    def tick(self) -> None:
        """Have those looked at whose turn it is, from time to time."""
        now = monotonic()
        if self._sweeps:
            self._deferred.append(self._go_on)
        if now >= self._next:
            self._next = now + _EVERY_S * JITTER.uniform(0.8, 1.2)
            self._deferred.append(self._look)

    def _look(self, store: Store) -> None:
        found = store.batches.next_batches(_AT_ONCE, _AGAIN_MS)
        now_ms, resting = store.now_ms(), {}
        for batch, record in zip(found, store.batches.records(found, ("ttl_ms",)), strict=True):
            over_ms = 0  # while it goes on, or a callback is due
            if isinstance(record, BatchRecord) and record.ended_ms and not record.due:
                over_ms = record.ended_ms + number(record.fields.get("ttl_ms"), 0)
            if over_ms >= now_ms:
                resting[batch] = min(over_ms + 1, now_ms + _RESTS_MS)
            else:
                self.soon(batch)
        if resting:
            store.batches.look_later(resting)
        if len(found) == _AT_ONCE:
            self._deferred.append(self._look)

    def _look_after(self, batch: str, store: Store) -> None:
        record = store.batches.batch(batch)
        if record is None:
            store.batches.unlist_batch(batch)  # not made yet, or forgotten half way
            return
        publish_due(store, record)
        now_ms = store.now_ms()
        if record.ended_ms:
            if now_ms > record.ended_ms + number(record.fields.get("ttl_ms"), 0):
                store.batches.forget_batch(batch)
            return
        timeout_ms = number(record.fields.get("seal_timeout_ms"), 0)
        if timeout_ms > 0 and record.is_left(timeout_ms, now_ms):
            logger.warning(
                "batch %r (%s) is sealed: its producer has not sealed it, and added nothing for "
                "its seal_timeout",
                batch,
                record.name,
            )
            store.batches.change(batch, (Change("seal"),))
            self.soon(batch)
        parent = record.fields.get(PARENT)
        if parent and not record.cancelled_ms:
            found = store.batches.batch(parent)
            if found is not None and found.cancelled_ms:
                store.batches.change(batch, (Change("cancel"),))
                self.soon(batch)
        self._sweep(record, now_ms)

    def _sweep(self, record: BatchRecord, now_ms: int) -> None:
        """Find the open jobs that nobody will end any more, and end them; the first step later."""
        now = monotonic()
        # Who entered jobs a while ago, and nothing since, may have died before it stored them.
        left_ms = record.heard_ms + MISSING_MS + 1 - now_ms
        doubt = record.heard_ms if left_ms <= 0 else 0
        if record.heard_ms and not doubt:
            self._next = min(self._next, now + max(left_ms, _AGAIN_MS) / 1000)
        doubted, self._doubted[record.id] = self._doubted.get(record.id, 0), doubt
        if doubt == doubted and now < self._next_sweep.get(record.id, 0.0):
            return
        if len(self._next_sweep) > _MOST_REMEMBERED:
            self._next_sweep = {name: at for name, at in self._next_sweep.items() if at > now}
            self._doubted = {name: self._doubted.get(name, 0) for name in self._next_sweep}
        self._next_sweep[record.id] = now + _SWEPT_EVERY_S
        if any(record.counts[state] for state in OPEN):
            self._sweeps.append((record.id, Sweep(record.id, now_ms, self.soon, self._runs)))

    def _go_on(self, store: Store) -> None:
        """Make some steps of the sweeps that are under way; the next tick makes others."""
        enough = monotonic() + _AT_A_TIME_S
        while self._sweeps:
            batch, sweep = self._sweeps.popleft()
            try:
                more = sweep.step(store)
            except BrokerUnavailable:
                if goes_on(store):
                    self._sweeps.append((batch, sweep))
                else:
                    self._next_sweep.pop(batch, None)  # it begins anew over another connection
                raise
            if more:
                self._sweeps.appendleft((batch, sweep))
            if monotonic() >= enough:
                return
