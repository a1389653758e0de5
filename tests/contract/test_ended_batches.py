"""A batch that has ended is checked rarely until it is forgotten."""

from collections import deque

import pytest

from reliq.batches.callbacks import CallbackMessage, packed
from reliq.batches.jobs import Change
from reliq.consumer import batch_passes
from tests.contract.jobs import begin, end, enter, lost, passes_over
from tests.support.waiting import wait_until

LONG_MS = 60_000
NOWHERE = packed(CallbackMessage("no exchange", "x", b"", 5, "t" * 30))


@pytest.fixture
def pass_over(store, batches, monkeypatch):
    """Return a function that makes a pass over all due batches.

    The batches of a pass are due again 1 ms later, unless they rest.
    """
    monkeypatch.setattr(batch_passes, "_AGAIN_MS", 1)

    def make():
        later = deque()
        passes_over(later).tick()
        while later:
            later.popleft()(store.store)
        now = store.store.now_ms()
        wait_until(lambda: store.store.now_ms() > now + 1)

    return make


@pytest.fixture
def ended(batches, change):
    """End the batch "b", with one job that succeeded and one whose message the broker lost."""
    batches.forget_batch("b")
    batches.open_batch("b", "enrol", {"ttl_ms": str(LONG_MS)})
    change(enter("i"), begin("i"), end("succeeded", "i"), enter(), lost(), Change("seal"))
    assert batches.batch("b").ended_ms


def due(batches):
    """Take and return the batches that are due for a check."""
    return batches.next_batches(10, LONG_MS)


@pytest.mark.slow
def test_an_ended_batch_rests(batches, ended, pass_over):
    """The first check publishes the callbacks of an ended batch; the second lets it rest."""
    pass_over()
    assert () == batches.batch("b").due
    pass_over()
    assert [] == due(batches)


def test_an_open_batch_does_not_rest(batches, change, pass_over):
    """An open batch is due again after each check."""
    change(enter())
    pass_over()
    assert ["b"] == due(batches)


def test_a_batch_with_a_callback_to_publish_does_not_rest(batches, change, pass_over):
    """A batch with a pending callback does not rest: each check tries to publish it."""
    batches.forget_batch("b")
    batches.open_batch("b", "enrol", {"ttl_ms": str(LONG_MS), "on_complete": NOWHERE})
    change(Change("seal"))
    pass_over()
    pass_over()
    assert ["b"] == due(batches)


def test_a_resting_batch_is_forgotten_in_time(store, batches, change, pass_over):
    """A resting batch is forgotten after its batch_ttl at the latest."""
    batches.forget_batch("b")
    batches.open_batch("b", "enrol", {"ttl_ms": "200"})
    change(Change("seal"))
    over_ms = batches.batch("b").ended_ms + 200
    pass_over()
    pass_over()
    wait_until(lambda: store.store.now_ms() > over_ms + 1)
    pass_over()
    assert batches.batch("b") is None


def test_a_resting_batch_goes_on(store, batches, ended, pass_over, monkeypatch):
    """A resting batch publishes a callback at the next check.

    The process that made the callback due died before its publication.
    """
    monkeypatch.setattr(batch_passes, "_RESTS_MS", 300)
    pass_over()
    pass_over()
    batches.change("b", [begin(token=5), end("succeeded", token=5)])
    assert ("success",) == batches.batch("b").due
    assert [] == due(batches)
    wait_until(lambda: pass_over() or not batches.batch("b").due)


def test_a_forgotten_batch_stays_forgotten(batches):
    """A late check does not list a forgotten batch again."""
    batches.forget_batch("b")
    batches.postpone({"b": 2**50})
    batches.open_batch("b", "enrol", {})
    assert ["b"] == due(batches)
