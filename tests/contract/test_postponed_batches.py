"""A batch that has ended is looked after no more until it is to be forgotten, or changes."""

from collections import deque

import pytest

from reliq.consumer import batch_passes
from reliq.consumer.batch_passes import BatchPasses
from reliq.store.jobs import CALLBACKS, Change
from reliq.transfer.batch_callbacks import CallbackMessage, packed
from tests.contract.jobs import TAG, begin, end, enter, lost
from tests.support.waiting import wait_until

LONG_MS = 60_000
NOWHERE = packed(CallbackMessage("no exchange", "x", b"", 5, "t" * 30))


@pytest.fixture
def pass_over(store, batches, monkeypatch):
    """Return a function that makes a pass over all batches that are due.

    The batches that it was given are due again 1 ms later, unless it has postponed them.
    """
    monkeypatch.setattr(batch_passes, "_AGAIN_MS", 1)

    def make():
        later = deque()
        passes = BatchPasses(later)
        passes.tick()
        while later:
            later.popleft()(store.store)
        now = store.store.now_ms()
        wait_until(lambda: store.store.now_ms() > now + 1)

    return make


@pytest.fixture
def ended(batches, change):
    """End the batch "b": one job has succeeded, of another the broker has lost the message."""
    batches.forget_batch("b")
    batches.open_batch("b", "enrol", {"ttl_ms": str(LONG_MS)})
    change(enter("i"), begin("i"), end("succeeded", "i"), enter(), lost(), Change("seal"))
    assert batches.batch("b").ended_ms


def due(batches):
    """Return the batches that somebody is to look after now, and take them."""
    return batches.next_batches(10, LONG_MS)


def test_one_that_has_ended_is_looked_after_once(batches, ended, pass_over):
    """What was due of it is said then."""
    pass_over()
    assert () == batches.batch("b").due
    assert [] == due(batches)


def test_one_that_goes_on_is_looked_after_again(batches, change, pass_over):
    """And again."""
    change(enter())
    pass_over()
    assert ["b"] == due(batches)


def test_one_of_which_something_is_due_is_looked_after_again(batches, change, pass_over):
    """Its callback has no queue: the next pass tries it again."""
    batches.forget_batch("b")
    batches.open_batch("b", "enrol", {"ttl_ms": str(LONG_MS), "on_complete": NOWHERE})
    change(Change("seal"))
    assert not batches.postpone("b", 2**50)
    assert ["b"] == due(batches)


def test_it_is_looked_after_to_be_forgotten(store, batches, change, pass_over):
    """When its time is over."""
    batches.forget_batch("b")
    batches.open_batch("b", "enrol", {"ttl_ms": "200"})
    change(Change("seal"))
    pass_over()
    assert [] == due(batches)
    over_ms = batches.batch("b").ended_ms + 200
    wait_until(lambda: store.store.now_ms() > over_ms + 1)
    pass_over()
    assert batches.batch("b") is None


NEWS = {
    "replayed": Change("replay", "j", tag="c" * 30, queue="q", text=TAG),
    "delivered": begin(token=5),
    "better": end("succeeded", token=5),
}


@pytest.mark.parametrize("posted", [False, True], ids=["told", "posted"])
@pytest.mark.parametrize("news", NEWS)
def test_news_of_a_job(store, batches, ended, pass_over, news, posted):
    """It goes on, or something is due: it is looked after at once, whoever hears of that dies."""
    pass_over()
    assert [] == due(batches)
    if posted:
        found = []
        batches.post_change("b", [NEWS[news]], found.append)
        while not found:
            store.store.wait_for_replies()
        assert [1] == found[0].outcomes
    else:
        assert [1] == batches.change("b", [NEWS[news]]).outcomes
    assert ["b"] == due(batches)


def test_it_ends_again(batches, ended, change, pass_over):
    """Then it is looked after no more; and so each time."""
    for token in (5, 7):
        pass_over()
        assert [] == due(batches)
        change(begin(token=token))
        pass_over()
        change(lost()._replace(token=token + 1))
        for callback in CALLBACKS:
            batches.said("b", callback)
        assert batches.batch("b").ended_ms
    pass_over()
    assert [] == due(batches)


def test_what_changes_nothing(batches, ended, pass_over):
    """Old news, of a job that has ended."""
    pass_over()
    batches.change("b", [begin("i"), end("succeeded", "i"), Change("seal"), Change("cancel")])
    assert [] == due(batches)


def test_one_that_is_not_there(batches):
    """Nothing is postponed."""
    assert not batches.postpone("b", 2**50)
