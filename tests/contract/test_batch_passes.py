"""The consumers' passes over batches: callbacks are published once, and no batch is left over."""

from __future__ import annotations

from collections import deque

import pytest

from reliq.batches.callbacks import CallbackMessage, packed, publish_due
from reliq.batches.jobs import PARENT, Change
from reliq.message.delivery_tag import new_tag
from reliq.message.envelope import pack
from tests.contract.jobs import begin, end, enter, job_of, passes_over
from tests.contract.steps import message
from tests.support.waiting import wait_until

SEAL = Change("seal")


def callback(queue="done", exchange=""):
    """Return the stored form of a callback to *queue*."""
    return packed(CallbackMessage(exchange, queue, b"the callback", 5, new_tag(5)))


@pytest.fixture
def opened(batches):
    """Return a function that opens a batch, by default with one job that has ended."""

    def make(name="b", *changes, **fields):
        fields = {one: str(value) for one, value in {"ttl_ms": 60_000, **fields}.items()}
        assert batches.open_batch(name, "test", fields)
        batches.change(name, changes or (enter(), begin(), end("succeeded"), SEAL))
        return batches.batch(name)

    return make


@pytest.fixture
def look(store):
    """Return a function that makes passes over a batch as one consumer, until no work is left."""

    def after(name="b"):
        later = deque()
        passes = passes_over(later)
        passes.soon(name)
        while later:
            later.popleft()(store.store)

    return after


def stored(store, queue="done"):
    """Return the number of messages in a queue."""
    status = store.store.reads.status(queue)
    return 0 if status is None else status.stored


# -- callbacks


@pytest.mark.slow
def test_a_callback_is_published_once(store, other, batches, opened):
    """A callback is published once, even by two consumers that have found it due.

    The same holds if its publisher did not record the publication.
    """
    record = opened(on_complete=callback())
    publish_due(store.store, record)
    publish_due(other.store, record)
    assert 1 == stored(store)
    assert {"complete", "success"} == set(batches.batch("b").published)
    assert () == batches.batch("b").due
    (taken,) = store.take(queue="done")
    store.ack(taken.tag, queue="done")
    publish_due(other.store, record)
    assert 0 == stored(store)


def test_a_callback_of_a_batch_that_goes_on(store, batches, opened, look):
    """A callback that was published is not repeated when a replayed job ends.

    The success callback is published then.
    """
    lost = Change("end", "j", "lost", token=2, tag="a" * 30, queue="q", text="why")
    fields = {f"on_{what}": callback(what) for what in ("success", "complete", "failure")}
    opened("b", enter(), lost, SEAL, **fields)
    look()
    batches.change("b", [Change("replay", "j", "", 0, 3, "a" * 30, "q")])
    batches.change("b", [begin(token=4), end("succeeded", token=4)])
    look()
    look()
    assert {"success": 1, "complete": 1, "failure": 1} == {
        what: stored(store, what) for what in ("success", "complete", "failure")
    }


def test_a_full_queue(store, batches, opened, look):
    """A callback to a full queue stays due until the queue has room."""
    store.declare("done", arguments=b"a", max_length="1", overflow="reject-publish")
    store.publish(message("done"))
    opened(on_complete=callback())
    look()
    assert (("complete",), 1) == (batches.batch("b").due, stored(store))
    (taken,) = store.take(queue="done")
    store.ack(taken.tag, queue="done")
    look()
    assert ((), 1) == (batches.batch("b").due, stored(store))


def test_an_exchange_without_a_queue(store, batches, opened, look):
    """A callback to an exchange without a queue stays due until one is bound.

    The known version of the bindings is outdated then.
    """
    opened(on_complete=callback("key", "x"))
    look()
    assert ("complete",) == batches.batch("b").due
    store.declare("done")
    store.store.bind("x", True, [pack(["key", "done"])])
    look()
    assert ((), 1) == (batches.batch("b").due, stored(store))


def test_a_callback_that_cannot_be_read(batches, opened, look):
    """A callback that cannot be read is not published, does not block others, and is not kept."""
    opened(on_complete="no message", on_success=callback())
    look()
    assert () == batches.batch("b").due


# -- abandoned batches


def test_nobody_has_sealed_it(batches, opened, look):
    """An unsealed batch is sealed its seal_timeout after the last job, and ends."""
    opened("b", enter(), begin(), end("succeeded"), seal_timeout_ms=1)
    opened("c", enter(), begin(), end("succeeded"), seal_timeout_ms=60_000)
    wait_until(lambda: (look(), batches.batch("b").sealed_ms)[1], interval_s=0.002)
    look()
    look("c")
    assert (0, True) == (batches.batch("c").sealed_ms, batches.batch("b").ended_ms > 0)


def test_a_batch_that_was_kept_long_enough(batches, opened, look):
    """A batch is forgotten its batch_ttl after its end, never before its end."""
    opened("b", ttl_ms=1)
    opened("c", ttl_ms=60_000)
    opened("d", enter(), SEAL, ttl_ms=1)
    wait_until(lambda: (look(), batches.batch("b") is None)[1], interval_s=0.002)
    look("c")
    look("d")
    assert {"c", "d"} == set(batches.batches(10))


def test_a_batch_that_was_half_forgotten(batches, opened, look):
    """A listed batch that no longer exists is removed from the list."""
    opened()
    batches.forget_batch("b")
    look()
    assert [] == batches.batches(10)


def test_a_batch_that_is_made_just_then(other, batches, look, monkeypatch):
    """A pass leaves a batch alone that is listed but not yet created."""
    seen = type(batches).batch

    def then_made(self, name):
        found = seen(self, name)
        if found is None:
            assert other.store.batches.open_batch(name, "test", {"ttl_ms": "60000"})
            other.store.batches.change(name, [enter()])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(type(batches), "batch", then_made)
        look()
    assert 1 == batches.batch("b").total
    assert ["b"] == batches.next_batches(9, 0)
    assert ["b"] == batches.batches(9)


# -- batches in batches


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (("succeeded", "succeeded"), "succeeded"),
        (("succeeded", "failed"), "failed"),
        (("failed", "error"), "error"),
    ],
)
def test_a_parent_is_told_of_the_end(store, batches, opened, look, ends, expected):
    """A child batch reports its end to the parent once, whatever callbacks it has itself."""
    opened("parent", Change("enter", "b", "waiting", tag="batch"), SEAL)
    changes = [
        change
        for n, how in enumerate(ends)
        for change in (enter(f"j{n}"), begin(f"j{n}"), end(how, f"j{n}"))
    ]
    opened("b", *changes, SEAL, **{PARENT: "parent"})
    look()
    look()
    assert (expected, 1) == (job_of(batches, "parent", "b").state, batches.batch("parent").total)
    assert batches.batch("parent").ended_ms


def test_a_child_of_a_cancelled_parent(batches, opened, look):
    """A pass cancels the child of a cancelled parent.

    The child counts as cancelled when none of its jobs is open.
    """
    opened("parent", Change("enter", "b", "waiting", tag="batch"), SEAL)
    opened("b", enter(), **{PARENT: "parent"})
    batches.change("parent", [Change("cancel")])
    look()
    assert batches.batch("b").cancelled_ms
    batches.change("b", [begin()])
    look()
    assert {"cancelled"} == {job_of(batches, "parent", "b").state, job_of(batches, "b", "j").state}
