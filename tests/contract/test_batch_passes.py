"""Passes over large batches: what takes long is done in steps, with other duties between."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest

from reliq.consumer.batch_passes import BatchPasses
from reliq.store.jobs import Change
from tests.contract.jobs import begin, enter
from tests.support.waiting import wait_until

JOBS = 900
OLD_MS = 120_000


@pytest.fixture
def later(store, monkeypatch):
    """Return the duties of a session, one of which looks after "b": its jobs are old."""
    now_ms = store.store.now_ms
    monkeypatch.setattr(store.store, "now_ms", lambda: now_ms() + OLD_MS)
    found = deque()
    BatchPasses(found).soon("b")
    return found


def test_other_duties_are_done_between(store, batches, change, later):
    """While all jobs of a batch are looked at, none of which is anywhere."""
    for start in range(0, JOBS, 200):
        change(*(enter(f"j{n}") for n in range(start, min(start + 200, JOBS))))
    ended = []

    def duty(_):
        ended.append(batches.batch("b").counts["error"])
        if len(ended) < 1000 and later:
            later.append(duty)

    later.append(duty)
    while later:
        later.popleft()(store.store)
    assert JOBS == batches.batch("b").counts["error"]
    assert max(after - before for before, after in pairwise(ended)) < JOBS
    assert 0 == ended[0]


def test_it_goes_on_over_another_connection(store, other, batches, change, later):
    """The one over which it began is lost."""
    for start in range(0, JOBS, 200):
        change(*(enter(f"j{n}") for n in range(start, min(start + 200, JOBS))))
    later.popleft()(store.store)
    assert JOBS > batches.batch("b").counts["error"]
    while later:
        later.popleft()(other.store)
    assert JOBS == batches.batch("b").counts["error"]


def test_one_that_gets_no_more_jobs_is_sealed(store, batches, change):
    """By when the last one was added, also where jobs go on."""
    batches.forget_batch("b")
    batches.open_batch("b", "enrol", {"seal_timeout_ms": "100"})
    change(enter("i"), enter("j"))
    added_ms = batches.batch("b").added_ms
    assert batches.batch("b").created_ms <= added_ms <= store.store.now_ms()
    wait_until(lambda: store.store.now_ms() > added_ms + 100)
    change(begin("i"), Change("withdraw", "j"))
    assert added_ms == batches.batch("b").added_ms
    duties = deque()
    BatchPasses(duties).soon("b")
    duties.popleft()(store.store)
    assert batches.batch("b").sealed_ms
