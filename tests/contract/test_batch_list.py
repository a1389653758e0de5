"""Batches are listed, and each due batch is checked by one consumer at a time."""

import threading

from reliq.batches.jobs import Change
from tests.contract.jobs import begin, end, enter
from tests.support.waiting import wait_until

LONG_MS = 60_000


def test_a_batch_that_is_due_is_given_to_one(batches, other):
    """A new batch is due at once, is given to one consumer, and then to none until due again."""
    batches.open_batch("b", "enrol", {})
    assert ["b"] == batches.next_batches(10, LONG_MS)
    assert [] == batches.next_batches(10, LONG_MS)
    assert [] == other.store.batches.next_batches(10, LONG_MS)


def test_it_is_due_again(batches, other):
    """A batch is due again after the requested time, for the first consumer that queries."""
    batches.open_batch("b", "enrol", {})
    assert ["b"] == batches.next_batches(10, 1)
    wait_until(lambda: other.store.batches.next_batches(10, LONG_MS) == ["b"])


def test_some_at_a_time(batches, other):
    """Consumers that query share the due batches: each batch is given to one of them."""
    names = {f"b{n}" for n in range(5)}
    for name in sorted(names):
        batches.open_batch(name, "enrol", {})
    assert [] == batches.next_batches(0, LONG_MS)
    first = batches.next_batches(2, LONG_MS)
    rest = other.store.batches.next_batches(10, LONG_MS)
    assert (2, 3) == (len(first), len(rest))
    assert names == {*first, *rest}


def test_who_waits_longest_is_first(store, batches):
    """The batch that is due for the longest time comes first, so that each has its turn."""
    names = [f"b{n}" for n in (2, 0, 1)]
    for name in names:
        batches.open_batch(name, "enrol", {})
        opened = store.store.now_ms()
        wait_until(lambda opened=opened: store.store.now_ms() > opened)
    assert names == [batches.next_batches(1, LONG_MS)[0] for _ in names]


def test_many_who_ask_at_once(connect, batches):
    """No batch is given to two of several concurrent consumers."""
    names = [f"b{n}" for n in range(40)]
    for name in names:
        batches.open_batch(name, "enrol", {})
    stores = [connect(f"s/{n}").store for n in range(2, 5)]
    found: list[str] = []

    def ask(store):
        while some := store.batches.next_batches(3, LONG_MS):
            found.extend(some)

    threads = [threading.Thread(target=ask, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(names) == sorted(found)


def test_looking_after_it_changes_no_order(batches):
    """The list is ordered by age, independent of checks."""
    for n in range(3):
        batches.open_batch(f"b{n}", "enrol", {})
    before = batches.batches(10)
    batches.next_batches(2, LONG_MS)
    assert before == batches.batches(10)
    assert [] == batches.batches(0)


def test_what_is_forgotten_is_due_no_more(batches):
    """A forgotten batch is neither due nor listed, and a new one may have its name."""
    batches.open_batch("b", "enrol", {})
    batches.forget_batch("b")
    assert [] == batches.next_batches(10, LONG_MS)
    assert [] == batches.batches(10)
    batches.forget_batch("b")
    batches.open_batch("b", "enrol", {})
    assert ["b"] == batches.batches(10)
    assert ["b"] == batches.next_batches(10, LONG_MS)


def test_many_jobs_are_forgotten(batches):
    """A batch with more jobs than one step removes is forgotten completely."""
    batches.open_batch("b", "enrol", {})
    batches.change("b", [enter(f"j{n}") for n in range(2100)])
    batches.forget_batch("b")
    assert [] == [job for part in batches.jobs("b") for job in part]
    batches.open_batch("b", "enrol", {})
    assert [] == [job for part in batches.jobs("b") for job in part]
    assert 1 == batches.change("b", [Change("seal")]).outcomes[0]


def test_batches_of_another_prefix(connect, batches):
    """Batches of different key prefixes are independent."""
    theirs = connect("s/9", global_keyprefix="p.").store.batches
    batches.open_batch("b", "ours", {})
    theirs.open_batch("b", "theirs", {})
    batches.change("b", [enter()])
    assert (1, 0) == (batches.batch("b").total, theirs.batch("b").total)
    theirs.forget_batch("b")
    assert ["b"] == batches.batches(10)
    assert [] == theirs.batches(10)
    assert ["b"] == batches.next_batches(10, LONG_MS)


# -- many at once


def test_many_records_at_once(batches, change):
    """Records read together come in the requested order and equal single ones.

    They contain only the requested fields, and not `heard_ms`. A missing batch is left out.
    """
    fields = {"ttl_ms": "7", "on_success": "a long message"}
    batches.open_batch("c", "other", fields)
    change(enter(), enter("i"), begin(), end("failed", why="no"), Change("seal"))
    found = batches.records(["c", "missing", "b"], ("ttl_ms", "nothing"))
    other, ours = found
    assert [] == found.unreachable
    assert batches.batch("b")._replace(heard_ms=0) == ours
    assert batches.batch("c")._replace(fields={"ttl_ms": "7"}) == other
    assert {"ttl_ms": "7"} == other.fields
    assert {} == batches.records(["c"])[0].fields
    assert [] == batches.records([])


def test_more_records_than_one_step_reads(batches):
    """More records than one step reads come in the order of the names."""
    names = [f"b{n}" for n in range(250)]
    for name in names:
        batches.open_batch(name, name, {})
    assert names == [record.name for record in batches.records(names)]


def test_since_when_something_is_due(batches, change):
    """A record contains the time at which its first pending callback became due."""
    assert 0 == batches.batch("b").due_since_ms
    change(enter(), begin(), end("failed", why="no"))
    change(Change("seal"))
    record = batches.batch("b")
    assert ("complete", "failure") == record.due
    assert record.created_ms <= record.due_since_ms == record.ended_ms
    batches.note_published("b", "complete")
    batches.note_published("b", "failure")
    assert 0 == batches.batch("b").due_since_ms
