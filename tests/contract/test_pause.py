"""A paused queue accepts and keeps, and gives nothing out until it is resumed.

What it does to a reserve, and what still settles: test_reserve.py.
"""

import pytest

from tests.contract.steps import LONG_MS, envelopes, message
from tests.contract.test_notifier import heard, notify, silent
from tests.support.waiting import wait_until


def paused(store, queue="q"):
    """Whether the status says that the queue is paused."""
    return store.store.reads.status(queue).paused


@pytest.mark.slow
def test_a_queue_says_whether_it_is_paused(store):
    """The status carries it; pausing or resuming twice is doing it once."""
    store.declare()
    assert not paused(store)
    for state in (True, True, False, False):
        assert store.pause(state)
        assert state == paused(store)


@pytest.mark.parametrize("state", [True, False])
def test_a_queue_that_does_not_exist_cannot_be_paused(store, state):
    """It is refused, and no queue comes of it."""
    assert not store.pause(state)
    assert store.store.reads.status("q") is None


def test_one_that_is_due_waits_for_the_end_of_the_pause(store):
    """A delayed message of a paused queue is given out when both are over."""
    store.publish(message(delay_ms=1, envelope=b"due"))
    store.pause(True)
    store.pass_time(5)
    assert [] == store.reserve(9).deliveries
    store.pause(False)
    assert [b"due"] == envelopes(store.reserve(9))


def test_a_paused_queue_still_promotes_and_expires(store):
    """Time does not stand still in it."""
    store.publish(message(delay_ms=1), message(ttl_ms=1), message(delay_ms=LONG_MS))
    store.pause(True)
    store.pass_time(5)
    store.reserve(9)
    assert {"ready": 1, "delayed": 1} == store.places()
    assert 1 == store.ledger("expired")


def test_a_redeclaration_does_not_end_a_pause(store):
    """A worker that starts declares its queues: what an operator said stays."""
    store.declare(arguments=b"a")
    store.pause(True)
    assert "existed" == store.declare(arguments=b"a")[0]
    assert paused(store)


def test_a_deleted_queue_is_not_paused_when_it_comes_back(store):
    """The pause is the queue's and goes with it."""
    store.declare()
    store.pause(True)
    store.delete()
    store.declare()
    assert not paused(store)


def test_a_pause_is_of_one_queue(store):
    """Others go on."""
    store.publish(message(), message("r", envelope=b"r"))
    store.pause(True)
    assert [b"r"] == envelopes(store.reserve(9, queue="r"))


@pytest.mark.parametrize("place", ["ready", "delayed"])
def test_the_end_of_a_pause_rings(store, other, place):
    """Who waits is woken, for what is ready and for what has a due time to learn."""
    store.publish(message(delay_ms=LONG_MS if place == "delayed" else 0))
    store.pause(True)
    while not silent(other):
        pass
    other.store.notifier.listen(["q"], 30.0)
    store.pause(False)
    assert "q" == heard(other)


def test_the_end_of_a_pause_of_an_empty_queue_is_silent(store, other):
    """There is nothing to take."""
    store.declare()
    store.pause(True)
    store.pause(False)
    assert silent(other)


def test_purging_a_paused_queue(store):
    """Operators may empty it."""
    store.publish(message(), message(delay_ms=LONG_MS))
    store.pause(True)
    assert 2 == store.purge()
    assert {} == store.places()


def test_what_returns_to_a_paused_queue_stays(connect):
    """The message of a consumer that died while the queue was paused waits for its end."""
    dying, other = connect("s/1"), connect("s/2")
    dying.publish(message(envelope=b"back"))
    (held,) = dying.take()
    dying.pause(True)
    other.return_ended(held)
    assert [] == other.reserve(9).deliveries
    other.pause(False)
    wait_until(lambda: notify(other) == "q")
    assert [b"back"] == envelopes(other.reserve(9))
