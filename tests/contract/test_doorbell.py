import threading
from time import monotonic

import pytest

from tests.contract.steps import LONG_MS, message
from tests.support.waiting import wait_until


def ring(store, *queues, timeout_s=5.0):
    """Wait for the bells of *queues* (of q); return the queue that rang, None when none did."""
    store.store.doorbell.listen(queues or ("q",), timeout_s)
    return heard(store)


def heard(store):
    """Wait until the wait that is under way is over; return the queue that rang."""
    doorbell = store.store.doorbell
    deadline = monotonic() + 20
    while doorbell.listening:
        assert monotonic() < deadline, "the doorbell's wait never ended"
        doorbell.wait(1.0)
    return doorbell.take_ring()


def silent(store, *queues):
    """Whether no bell rings now."""
    return ring(store, *queues, timeout_s=0.05) is None


@pytest.fixture
def quiet(store, other):
    """Return a store whose queue q holds two held messages, one delayed, and a bell at rest."""
    store.publish(message(), message(), message(delay_ms=LONG_MS))
    store.held = store.take(2)
    while not silent(store):
        pass
    return store


def test_a_publish_rings(store):
    """Who waits hears of a message, and of which queue it is in."""
    assert silent(store, "q", "r")
    store.publish(message("r"))
    assert "r" == ring(store, "q", "r")


def test_a_publish_wakes_who_waits_already(store, other):
    """The wait ends when the message comes, long before its time is up."""
    store.store.doorbell.listen(["q"], 30.0)
    assert not store.store.doorbell.wait(0.05)
    before = monotonic()
    other.publish(message())
    assert "q" == heard(store)
    assert monotonic() - before < 10


def test_handing_back_rings(store, other):
    """Who waits hears of messages that a consumer without acks did not hand out."""
    store.publish(message())
    taken = store.reserve(no_ack=True).deliveries
    while not silent(other):
        pass
    other.store.doorbell.listen(["q"], 30.0)
    store.hand_back(*taken)
    assert "q" == heard(other)


def test_a_ring_is_reported_once(store):
    """take_ring returns the queue of the last wait one time."""
    store.publish(message())
    assert "q" == ring(store)
    assert store.store.doorbell.take_ring() is None


@pytest.mark.parametrize("how", ["buffered", "returned", "requeued"])
def test_a_return_rings(quiet, other, how):
    """What is given back can be taken."""
    quiet.release(how, quiet.held[0])
    assert "q" == ring(other)


def test_a_restore_rings(quiet, other):
    """What comes back from a dead consumer can be taken."""
    quiet.return_ended(quiet.held[0])
    assert "q" == ring(other)


def test_a_pass_rings_for_what_was_left(store, other):
    """A ring that died with the consumer it had woken is made up for."""
    store.publish(message())
    assert "q" == ring(other)
    assert silent(other)
    store.restore()
    assert "q" == ring(other)


def test_a_reserve_that_leaves_messages_rings(store, other):
    """The next consumer is woken by the one that could not take all."""
    store.publish(message(), message())
    assert "q" == ring(other)
    store.reserve(1)
    assert "q" == ring(other)
    store.reserve(1)
    assert silent(other)


def test_a_promotion_rings(store, other):
    """Delayed messages that became ready can be taken by others."""
    store.publish(message(delay_ms=1))
    while not silent(other):
        pass
    wait_until(lambda: store.reserve(0).left, interval_s=0.002)
    assert "q" == ring(other)


def test_the_earliest_delayed_message_rings(store):
    """Only one that is due before all others changes how long anyone may sleep."""
    store.publish(message(delay_ms=50_000))
    assert "q" == ring(store)
    store.publish(message(delay_ms=90_000))
    assert silent(store)
    store.publish(message(delay_ms=20_000))
    assert "q" == ring(store)


def test_what_leaves_nothing_to_take_is_silent(quiet):
    """Ack, renewal, dead letter, refused returns and empty passes wake nobody."""
    first, second = quiet.held
    quiet.ack(first.tag)
    quiet.renew(second)
    quiet.release("returned", first)
    quiet.restore()
    quiet.dead_letter(second)
    quiet.reserve()
    assert silent(quiet)


def test_a_duplicate_is_silent(store):
    """A retry of what is stored already brings nothing to take."""
    sent = message(number=1, low=1)
    store.publish(sent)
    store.take()
    while not silent(store):
        pass
    store.publish(sent)
    assert silent(store)


def test_a_paused_queue_does_not_announce_what_it_keeps(store):
    """A reserve that may not take does not wake the next one to try in vain."""
    store.publish(message())
    assert "q" == ring(store)
    store.pause(True)
    store.reserve()
    assert silent(store)


def test_one_ring_wakes_one(connect):
    """Of several that wait, one is woken for one message: no herd."""
    waiting = [connect(f"s/{n}") for n in range(4)]
    for store in waiting:
        store.store.doorbell.listen(["q"], 1.0)
    waiting[0].publish(message())
    assert [None, None, None, "q"] == sorted(map(heard, waiting), key=str)


def test_a_hundred_messages_are_one_ring(store):
    """The bell is a hint: it does not count."""
    store.publish(*(message() for _ in range(100)))
    assert "q" == ring(store)
    assert silent(store)


def test_a_bell_that_rang_before_is_heard(store):
    """Who begins to wait after the publish does not miss it."""
    store.publish(message())
    assert "q" == ring(store)


def test_a_wait_ends_when_its_time_is_up(store):
    """Without a ring: take_ring says so."""
    before = monotonic()
    assert ring(store, timeout_s=0.2) is None
    assert 0.1 < monotonic() - before < 10


def test_waits_for_what_it_was_told(store):
    """The queues of the wait are known, until another begins."""
    doorbell = store.store.doorbell
    assert not doorbell.listening
    doorbell.listen(["q", "r"], 0.05)
    assert doorbell.listening
    assert {"q", "r"} == doorbell.queues
    doorbell.listen(["other"], 0.05)
    assert {"q", "r"} == doorbell.queues
    assert heard(store) is None
    assert not doorbell.listening
    doorbell.listen(["other"], 0.05)
    assert {"other"} == doorbell.queues
    assert heard(store) is None


def test_a_wait_can_be_ended(store):
    """end_wait lets it begin anew for other queues, long before its time is up."""
    doorbell = store.store.doorbell
    doorbell.listen(["q"], 30.0)
    assert not doorbell.wait(0.05)
    store.store.end_wait()
    store.store.settle()
    assert heard(store) is None
    store.store.end_wait()
    store.publish(message("r"))
    assert "r" == ring(store, "r")


def test_wake_ends_the_wait_of_another_thread(store):
    """The broker's wait goes on: what rings later is heard."""
    doorbell = store.store.doorbell
    doorbell.listen(["q"], 30.0)
    results = []
    thread = threading.Thread(target=lambda: results.append(doorbell.wait(20.0)))
    thread.start()
    # Woken until it wakes: the thread may not wait yet when the first call comes.
    wait_until(lambda: doorbell.wake() or results, interval_s=0.01)
    thread.join(10)
    assert [False] == results
    assert doorbell.listening
    store.publish(message())
    assert "q" == heard(store)


def test_a_wake_that_comes_first_is_not_lost(store):
    """A thread that was woken just before it waits, in a wait that has begun, does not wait."""
    doorbell = store.store.doorbell
    doorbell.listen(["q"], 30.0)
    doorbell.wait(0.01)
    doorbell.wake()
    before = monotonic()
    assert not doorbell.wait(20.0)
    assert monotonic() - before < 10


def test_no_command_waits_for_the_bell(store):
    """While the doorbell waits, the store answers."""
    store.store.doorbell.listen(["q"], 30.0)
    before = monotonic()
    store.publish(message("r"))
    store.take(queue="r")
    assert monotonic() - before < 10


def test_a_closed_doorbell_waits_no_more(connect):
    """Closing needs no goodbye, and takes no ring from who still waits for long."""
    # A queue of its own: fakeredis lets who is gone wait on, and ring, into the next test.
    gone, waiting = connect("s/1"), connect("s/2")
    gone.store.doorbell.listen(["left"], 30.0)
    gone.store.doorbell.wait(0.05)
    gone.store.close()
    assert not gone.store.doorbell.listening
    waiting.store.doorbell.listen(["left"], 30.0)
    waiting.publish(message("left"))
    # The broker may have rung for the one that is gone; then a pass makes up for it.
    wait_until(
        lambda: waiting.restore(queue="left") and waiting.store.doorbell.receive(), interval_s=0.05
    )
    assert "left" == waiting.store.doorbell.take_ring()


def test_a_pass_rings_for_what_is_due(store):
    """Whoever knew when to look may have died: a pass wakes another for a due message."""
    store.publish(message(delay_ms=1))
    store.store.doorbell.listen(["q"], 5.0)
    assert store.store.doorbell.wait(5.0)  # the ring of the publish
    store.pass_time(2)
    store.store.doorbell.listen(["q"], 5.0)
    store.restore()
    assert store.store.doorbell.wait(5.0)


def test_a_pass_does_not_ring_for_a_paused_queue(store):
    """There is nothing to be had."""
    store.publish(message())
    store.store.pause("q", True)
    store.store.doorbell.listen(["q"], 0.2)
    assert store.store.doorbell.wait(1.0)  # the ring of the publish
    store.restore()
    store.store.doorbell.listen(["q"], 0.2)
    assert store.store.doorbell.wait(1.0)
    assert store.store.doorbell.take_ring() is None
