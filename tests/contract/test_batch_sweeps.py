"""Sweeps of large batches run in steps, with other duties in between."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest

from reliq.batches import lost_jobs
from reliq.batches.jobs import Change
from reliq.consumer import batch_passes
from tests.contract.jobs import begin, enter, passes_over, seal, sweep_of
from tests.support.waiting import wait_until

JOBS = 900
OLD_MS = 120_000
MOST_TICKS = 100


@pytest.fixture
def tick(store, batches, change, monkeypatch):
    """Return a function that makes a tick of a session; all jobs of its batch "b" are lost."""
    for start in range(0, JOBS, 200):
        change(*(enter(f"j{n}") for n in range(start, min(start + 200, JOBS))))
    change(seal())
    now_ms = store.store.now_ms
    monkeypatch.setattr(store.store, "now_ms", lambda: now_ms() + OLD_MS)
    monkeypatch.setattr(batch_passes, "_AT_A_TIME_S", 0.0)  # one step per tick
    monkeypatch.setattr(lost_jobs, "_AT_ONCE", 300)
    duties = deque()
    passes = passes_over(duties)
    passes.soon("b")

    def make(over):
        passes.tick()
        for _ in range(len(duties)):  # work that these schedule is done in the next tick
            duties.popleft()(over)
        return batches.batch("b").counts["error"]

    return make


def test_all_jobs_are_looked_at_in_steps(store, tick):
    """A sweep covers some jobs per tick, so that leases are renewed and messages delivered."""
    ended = [tick(store.store)]
    while ended[-1] < JOBS:
        ended.append(tick(store.store))
        assert len(ended) < MOST_TICKS
    assert 0 == ended[0]
    assert max(after - before for before, after in pairwise(ended)) < JOBS


def test_it_goes_on_over_another_connection(store, other, tick):
    """A sweep continues over another connection after the loss of its own."""
    wait_until(lambda: tick(store.store))
    ticks = iter(range(MOST_TICKS))
    while tick(other.store) < JOBS:
        next(ticks)


def test_a_sweep_takes_few_steps(store, change):
    """A sweep has few steps, as each tick on a busy machine makes only one."""
    for start in range(0, JOBS, 200):
        change(*(enter(f"j{n}") for n in range(start, min(start + 200, JOBS))))
    sweep, steps = sweep_of("b", store.store.now_ms() + OLD_MS), 1
    while sweep.step(store.store):
        steps += 1
    assert steps <= 3


def test_a_doubt_is_looked_into_soon(store, batches, change, monkeypatch):
    """A suspected lost job is checked again after a minute, before the next sweep.

    Its publisher may have died.
    """
    change(enter())
    passed_s = 0
    now_ms = store.store.now_ms
    monkeypatch.setattr(store.store, "now_ms", lambda: now_ms() + passed_s * 1000)
    monkeypatch.setattr(batch_passes, "monotonic", lambda: float(passed_s))
    monkeypatch.setattr(batch_passes, "_AGAIN_MS", 1)  # on the server's clock
    monkeypatch.setattr(batch_passes, "_EVERY_S", 1000.0)
    duties = deque()
    passes = passes_over(duties)
    while batches.batch("b").total:
        passes.tick()
        while duties:
            duties.popleft()(store.store)
        passed_s += 5
        assert passed_s < 90


def test_one_that_gets_no_more_jobs_is_sealed(store, batches, change):
    """A batch is sealed by the time of its last added job, even while other jobs continue."""
    batches.forget_batch("b")
    batches.open_batch("b", "enrol", {"seal_timeout_ms": "100"})
    change(enter("i"), enter("j"))
    added_ms = batches.batch("b").added_ms
    assert batches.batch("b").created_ms <= added_ms <= store.store.now_ms()
    wait_until(lambda: store.store.now_ms() > added_ms + 100)
    change(begin("i"), Change("withdraw", "j"))
    assert added_ms == batches.batch("b").added_ms
    duties = deque()
    passes_over(duties).soon("b")
    duties.popleft()(store.store)
    assert batches.batch("b").sealed_ms
