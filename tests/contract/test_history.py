"""The history of a queue: a snapshot of its counts and ledger in each minute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliq.values.history import Snapshot
from tests.contract.steps import LONG_MS, message
from tests.support.waiting import wait_until

SHORT_MS = 50
"""The minute of these tests."""


def history(store, queue="q", *, since_ms=0, every_ms=60_000):
    """Return all snapshots of a queue."""
    return store.store.reads.history(queue, since_ms, store.store.now_ms(), every_ms)


def wait_for_next(store, every_ms=SHORT_MS):
    """Wait until the interval is over."""
    this = store.store.now_ms() // every_ms
    wait_until(lambda: store.store.now_ms() // every_ms > this, interval_s=0.002)


@pytest.mark.slow
def test_a_snapshot_has_counts_and_what_was_done_since_the_one_before(store):
    """A snapshot contains the counts and the changes of the ledger since the previous snapshot.

    The first snapshot contains no changes, as their start is unknown.
    """
    store.publish(*(message() for _ in range(300)), message(delay_ms=LONG_MS))
    store.declare()
    store.snapshot(every_ms=SHORT_MS)
    first, second, third, fourth = store.take(4)
    store.ack(first.tag)
    store.release("nacked", second)
    store.dead_letter(third)
    wait_for_next(store)
    store.snapshot(every_ms=SHORT_MS)
    before, after = history(store, every_ms=SHORT_MS)
    assert (300, 1, 0, 0) == (before.ready, before.delayed, before.unacked, before.dead)
    assert Snapshot(before.at_ms, 0, 300, 1) == before
    assert (297, 1, 1, 1) == (after.ready, after.delayed, after.unacked, after.dead)
    assert (0, 4, 1) == (after.published, after.delivered, after.acked)
    assert (0, 1, 1, 0) == (
        after.redelivered,
        after.failed,
        after.dead_lettered,
        after.expired,
    )
    assert after.at_ms - before.at_ms == after.span_ms > 0
    assert fourth


def test_one_in_a_minute(store, other):
    """Each minute has one snapshot, from the first consumer; later ones change nothing."""
    store.publish(message())
    (due_ms,) = store.snapshot()
    before = history(store)
    if 1 < due_ms:  # otherwise the minute may be over
        store.publish(message())
        other.snapshot()
        after = history(store)
        minute = store.store.now_ms() // 60_000 * 60_000
        assert before == [item for item in after if item.at_ms < minute] or before == after
    assert 0 < due_ms <= 60_000


def test_what_stays_the_same_is_counted_for_each_minute(store):
    """Equal snapshots are all kept, one for each minute, in compact form."""
    store.publish(message())
    times = 5
    for _ in range(times):
        store.snapshot(every_ms=SHORT_MS)
        wait_for_next(store)
    found = history(store, every_ms=SHORT_MS)
    assert times == len(found)
    assert {1} == {item.ready for item in found}
    assert sorted({item.at_ms for item in found}) == [item.at_ms for item in found]
    since = found[2].at_ms
    assert found[2:] == history(store, since_ms=since, every_ms=SHORT_MS)


def test_a_gap_is_a_gap(store):
    """A minute without a snapshot is a gap; the next snapshot covers the changes since."""
    store.publish(message())
    store.snapshot(every_ms=SHORT_MS)
    for _ in range(3):
        wait_for_next(store)
    store.publish(message())
    store.snapshot(every_ms=SHORT_MS)
    first, second = history(store, every_ms=SHORT_MS)
    assert second.span_ms == second.at_ms - first.at_ms >= 3 * SHORT_MS
    assert 1 == second.published


@pytest.mark.slow
def test_what_is_too_old_is_forgotten(store):
    """Old snapshots are forgotten with the snapshot that begins a block.

    Until then, a query does not return snapshots beyond the guaranteed time.
    """
    every_ms = 1  # a block lasts 60 ms, all of them four seconds
    store.publish(message())
    store.snapshot(every_ms=every_ms)
    (first,) = history(store, every_ms=every_ms)
    store.pass_time(73 * 60)
    assert [] == history(store, every_ms=every_ms)
    store.snapshot(every_ms=every_ms)
    long_ago = store.store.now_ms() - 60
    assert [] == store.store.reads.history("q", 0, first.at_ms, every_ms)
    assert 1 == len(store.store.reads.history("q", long_ago, store.store.now_ms(), every_ms))


def test_a_queue_takes_its_history_along(store):
    """A deleted queue loses its history, and a new queue of its name begins without one."""
    store.declare()
    store.snapshot()
    assert 1 == len(history(store))
    store.delete()
    assert [] == history(store)
    store.declare()
    store.snapshot(every_ms=SHORT_MS)
    assert 1 == len(history(store, every_ms=SHORT_MS))


@pytest.mark.parametrize("meta", [{"auto_delete": "1"}, {"expires": "600000"}])
def test_a_temporary_queue_has_none(store, meta):
    """A temporary queue has no history, and a snapshot does not create a queue."""
    store.declare(**meta)
    store.snapshot("q", "unknown")
    assert [] == history(store)
    assert [] == history(store, "unknown")
    assert store.store.reads.status("unknown") is None


@pytest.mark.slow
def test_many_queues_at_once(store):
    """Each of many queues in one call has its own history."""
    names = [f"q{number}" for number in range(60)]
    store.publish(*(message(name) for name in names[::2]))
    for name in names[1::2]:
        store.declare(name)
    assert store.snapshot(*names)
    found = [history(store, name)[0] for name in names]
    assert [1, 0] * 30 == [item.ready for item in found]
    assert {replace(item, at_ms=0) for item in found} == {Snapshot(0, 0, 1), Snapshot(0, 0, 0)}
