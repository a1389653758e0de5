"""A look at all jobs of a batch takes long where there are many: nothing else waits for it."""

from __future__ import annotations

from collections import deque

from reliq.batches import Batch
from reliq.consumer import batch_passes
from reliq.consumer.batch_passes import BatchPasses
from reliq.store.jobs import Change

JOBS = 3000


def test_a_look_at_all_jobs_is_done_in_parts(redis_url, monkeypatch):
    """Some of them a tick: leases are renewed and messages delivered meanwhile."""
    monkeypatch.setattr(batch_passes, "_AT_A_TIME_S", 0.0)  # one part at a time
    with Batch("big", url=redis_url) as batch:
        store = batch._connected()
        entered = [Change("enter", f"j{n}", "waiting", tag=f"t{n}", queue="q") for n in range(JOBS)]
        store.batches.change(batch.id, entered)
        later = deque()
        passes = BatchPasses(later)
        now_ms = store.now_ms
        monkeypatch.setattr(store, "now_ms", lambda: now_ms() + 120_000)
        lost = []
        passes.soon(batch.id)
        while not lost or lost[-1] < JOBS:
            for _ in range(len(later)):  # what this one asks for is done by the next tick
                later.popleft()(store)
            lost.append(batch.status().counts["error"])
            assert len(lost) < 100
            passes.tick()
    batch.close()
    assert len({*lost}) > 3, lost
