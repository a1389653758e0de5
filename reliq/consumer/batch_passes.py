"""Batch passes: the periodic upkeep of all batches, including those whose producer has died.

A pass publishes due callbacks, seals abandoned batches, removes batches older than their
``batch_ttl``, and finds jobs whose messages are missing. One consumer at a time has a batch.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from ..batches.callbacks import publish_due
from ..batches.jobs import OPEN, PARENT, BatchRecord, Change
from ..batches.lost_jobs import MISSING_MS, Sweep
from ..errors import BrokerUnavailable, logger
from ..failover.brokers import JITTER
from ..values.protocol import partly_reachable
from ..values.unreadable import number

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..batches.job_reports import JobReports
    from ..values.protocol import Store
    from .runner import Runner


_AT_ONCE = 200
_EVERY_S = 30.0
_AGAIN_MS = 20_000
# Interval of checks of ended batches: the publisher of a callback after a replay may have died.
_RESTS_MS = 600_000
# Interval of sweeps over all jobs of a batch, each of which reads all jobs.
_SWEPT_EVERY_S = 300.0
_MOST_REMEMBERED = 1000
# Time for sweeps in a tick. Leases are renewed and messages delivered in between.
_AT_A_TIME_S = 0.05


class BatchPasses:
    """The passes of one session over batches."""

    def __init__(
        self,
        runner: Runner,
        reports: JobReports,
        runs: Callable[[str], Collection[str] | None],
    ) -> None:
        """Make *runner* do the work; *runs* returns the jobs of a worker of this process."""
        self._runner = runner
        self._reports = reports
        self._next = 0.0
        # By batch: the doubt at its last sweep, and the time of its next one.
        self._swept: dict[str, tuple[int, float]] = {}
        self._runs = runs
        self._sweeps: deque[tuple[str, Sweep]] = deque()

    def soon(self, batch: str) -> None:
        """Check *batch* at the next opportunity, as something may be due."""
        self._runner.soon(self._advance, batch)

    def check_soon(self) -> None:
        """Check the due batches at the next opportunity."""
        self._runner.soon(self._check)

    @property
    def sweeps(self) -> bool:
        """Whether sweeps are in progress, which ticks continue."""
        return bool(self._sweeps)

    def tick(self) -> None:
        """Schedule sweeps in progress, and periodically a check of the due batches."""
        now = monotonic()
        if self._sweeps:
            self._runner.soon(self._go_on)
        if now >= self._next:
            self._next = now + _EVERY_S * JITTER.uniform(0.8, 1.2)
            self._runner.soon(self._check)

    def _check(self, store: Store) -> None:
        names = store.batches.next_batches(_AT_ONCE, _AGAIN_MS)
        now_ms, resting = store.now_ms(), {}
        records = {record.id: record for record in store.batches.records(names, ("ttl_ms",))}
        for batch in names:
            over_ms, record = 0, records.get(batch)  # 0: it is in progress, or a callback is due
            if record is not None and record.ended_ms and not record.due:
                over_ms = record.ended_ms + number(record.fields.get("ttl_ms"), 0)
            if over_ms >= now_ms:
                resting[batch] = min(over_ms + 1, now_ms + _RESTS_MS)
            else:
                self.soon(batch)
        if resting:
            store.batches.postpone(resting)
        if len(names) == _AT_ONCE:
            self._runner.soon(self._check)

    def _advance(self, batch: str, store: Store) -> None:
        record = store.batches.batch(batch)
        if record is None:
            store.batches.unlist_batch(batch)  # not created yet, or partly forgotten
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
                "batch %r (%s) is sealed: its producer has neither sealed it nor added jobs for "
                "its seal_timeout",
                batch,
                record.name,
            )
            self._reports.change(store, batch, (Change("seal"),))
        parent = record.fields.get(PARENT)
        if parent and not record.cancelled_ms:
            above = store.batches.batch(parent)
            if above is not None and above.cancelled_ms:
                self._reports.change(store, batch, (Change("cancel"),))
        self._sweep(record, now_ms)

    def _sweep(self, record: BatchRecord, now_ms: int) -> None:
        """Schedule a sweep, which ends the open jobs that no message or worker will end."""
        now = monotonic()
        # A publisher that was silent since it entered jobs may have died before it stored them.
        left_ms = record.heard_ms + MISSING_MS + 1 - now_ms
        doubt = record.heard_ms if left_ms <= 0 else 0
        if record.heard_ms and not doubt:
            self._next = min(self._next, now + max(left_ms, _AGAIN_MS) / 1000)
        doubted, next_at = self._swept.get(record.id, (0, 0.0))
        if doubt == doubted and now < next_at:
            return
        if len(self._swept) > _MOST_REMEMBERED:
            self._swept = {name: swept for name, swept in self._swept.items() if swept[1] > now}
        self._swept[record.id] = doubt, now + _SWEPT_EVERY_S
        if any(record.counts[state] for state in OPEN):
            self._sweeps.append((record.id, Sweep(record.id, now_ms, self._reports, self._runs)))

    def _go_on(self, store: Store) -> None:
        """Make some steps of the sweeps in progress; the next tick continues."""
        enough = monotonic() + _AT_A_TIME_S
        while self._sweeps:
            batch, sweep = self._sweeps.popleft()
            try:
                more = sweep.step(store)
            except BrokerUnavailable:
                if partly_reachable(store):
                    self._sweeps.append((batch, sweep))
                else:
                    self._swept.pop(batch, None)  # it restarts over another connection
                raise
            if more:
                self._sweeps.appendleft((batch, sweep))
            if monotonic() >= enough:
                return
