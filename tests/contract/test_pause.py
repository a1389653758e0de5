"""A paused queue accepts and keeps messages, and delivers none until it is resumed.

For reserves and for settling in a paused queue, see test_reserve.py.
"""

import pytest

from tests.contract.steps import LONG_MS, envelopes, message
from tests.contract.test_notifier import heard, notify, silent
from tests.support.waiting import wait_until


def paused(store, queue="q"):
    """Whether the status shows the queue as paused."""
    return store.store.reads.status(queue).paused


@pytest.mark.slow
def test_a_queue_says_whether_it_is_paused(store):
    """The status shows whether a queue is paused; a repeated pause or resume changes nothing."""
    store.declare()
    assert not paused(store)
    for state in (True, True, False, False):
        assert store.pause(state)
        assert state == paused(store)


@pytest.mark.parametrize("state", [True, False])
def test_a_queue_that_does_not_exist_cannot_be_paused(store, state):
    """A pause or resume of a missing queue is refused and creates no queue."""
    assert not store.pause(state)
    assert store.store.reads.status("q") is None


def test_one_that_is_due_waits_for_the_end_of_the_pause(store):
    """A due message of a paused queue is delivered after the end of the pause."""
    store.publish(message(delay_ms=1, envelope=b"due"))
    store.pause(True)
    store.pass_time(5)
    assert [] == store.reserve(9).deliveries
    store.pause(False)
    assert [b"due"] == envelopes(store.reserve(9))


def test_a_paused_queue_still_promotes_and_expires(store):
    """A paused queue still promotes and expires messages."""
    store.publish(message(delay_ms=1), message(ttl_ms=1), message(delay_ms=LONG_MS))
    store.pause(True)
    store.pass_time(5)
    store.reserve(9)
    assert {"ready": 1, "delayed": 1} == store.places()
    assert 1 == store.ledger("expired")


def test_a_redeclaration_does_not_end_a_pause(store):
    """A redeclaration does not end a pause, which an operator has set."""
    store.declare(arguments=b"a")
    store.pause(True)
    assert "existed" == store.declare(arguments=b"a")[0]
    assert paused(store)


def test_a_deleted_queue_is_not_paused_when_it_comes_back(store):
    """A deleted queue is no longer paused when it is declared again."""
    store.declare()
    store.pause(True)
    store.delete()
    store.declare()
    assert not paused(store)


def test_a_pause_is_of_one_queue(store):
    """A pause applies to one queue; others continue."""
    store.publish(message(), message("r", envelope=b"r"))
    store.pause(True)
    assert [b"r"] == envelopes(store.reserve(9, queue="r"))


@pytest.mark.parametrize("place", ["ready", "delayed"])
def test_the_end_of_a_pause_rings(store, other, place):
    """The end of a pause notifies consumers of ready messages and of due times."""
    store.publish(message(delay_ms=LONG_MS if place == "delayed" else 0))
    store.pause(True)
    while not silent(other):
        pass
    other.store.notifier.listen(["q"], 30.0)
    store.pause(False)
    assert "q" == heard(other)


def test_the_end_of_a_pause_of_an_empty_queue_is_silent(store, other):
    """The end of a pause of an empty queue does not notify."""
    store.declare()
    store.pause(True)
    store.pause(False)
    assert silent(other)


def test_purging_a_paused_queue(store):
    """A paused queue can be purged."""
    store.publish(message(), message(delay_ms=LONG_MS))
    store.pause(True)
    assert 2 == store.purge()
    assert {} == store.places()


def test_what_returns_to_a_paused_queue_stays(connect):
    """A message returned by a dead consumer to a paused queue waits for the end of the pause."""
    dying, other = connect("s/1"), connect("s/2")
    dying.publish(message(envelope=b"back"))
    (held,) = dying.take()
    dying.pause(True)
    other.return_ended(held)
    assert [] == other.reserve(9).deliveries
    other.pause(False)
    wait_until(lambda: notify(other) == "q")
    assert [b"back"] == envelopes(other.reserve(9))
