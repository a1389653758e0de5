import threading
from time import monotonic

import pytest

from tests.contract.steps import LONG_MS, message
from tests.support.waiting import wait_until


def notify(store, *queues, timeout_s=5.0):
    """Wait for the notifications of *queues* (of q); return whose came, or None."""
    until = monotonic() + timeout_s
    while True:
        store.store.notifier.listen(queues or ("q",), max(until - monotonic(), 0.001))
        rang = heard(store)
        # Over several nodes a part of the wait may end before the others, and begins anew.
        if rang is not None or not store.store.has_nodes or monotonic() >= until:
            return rang


def heard(store):
    """Wait until the wait that is under way is over; return the queue that rang."""
    notifier = store.store.notifier
    deadline = monotonic() + 20
    while notifier.listening:
        assert monotonic() < deadline, "the notifier's wait never ended"
        notifier.wait(1.0)
    return notifier.take_notification()


def silent(store, *queues):
    """Whether no notification rings now."""
    return notify(store, *queues, timeout_s=0.05) is None


@pytest.fixture
def quiet(store, other):
    """Return a store whose queue q holds two held messages, one delayed, and no notification."""
    store.publish(message(), message(), message(delay_ms=LONG_MS))
    store.held = store.take(2)
    while not silent(store):
        pass
    return store


def test_a_publish_rings(store):
    """Who waits hears of a message, and of which queue it is in."""
    assert silent(store, "q", "r")
    store.publish(message("r"))
    assert "r" == notify(store, "q", "r")


def test_a_publish_wakes_who_waits_already(store, other):
    """The wait ends when the message comes, long before its time is up."""
    store.store.notifier.listen(["q"], 30.0)
    assert not store.store.notifier.wait(0.05)
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
    other.store.notifier.listen(["q"], 30.0)
    store.hand_back(*taken)
    assert "q" == heard(other)


def test_a_ring_is_reported_once(store):
    """take_notification returns the queue of the last wait one time."""
    store.publish(message())
    assert "q" == notify(store)
    assert store.store.notifier.take_notification() is None


@pytest.mark.parametrize("how", ["undelivered", "released", "nacked"])
def test_a_return_rings(quiet, other, how):
    """What is given back can be taken."""
    quiet.release(how, quiet.held[0])
    assert "q" == notify(other)


def test_a_restore_rings(quiet, other):
    """What comes back from a dead consumer can be taken."""
    quiet.return_ended(quiet.held[0])
    assert "q" == notify(other)


def test_a_pass_rings_for_what_was_left(store, other):
    """A ring that died with the consumer it had woken is made up for."""
    store.publish(message())
    assert "q" == notify(other)
    assert silent(other)
    store.restore()
    assert "q" == notify(other)


def test_a_reserve_that_leaves_messages_rings(store, other):
    """The next consumer is woken by the one that could not take all."""
    store.publish(message(), message())
    assert "q" == notify(other)
    store.reserve(1)
    assert "q" == notify(other)
    store.reserve(1)
    assert silent(other)


def test_a_promotion_rings(store, other):
    """Delayed messages that became ready can be taken by others."""
    store.publish(message(delay_ms=1))
    while not silent(other):
        pass
    wait_until(lambda: store.promote().left, interval_s=0.002)
    assert "q" == notify(other)


def test_the_earliest_delayed_message_rings(store):
    """Only one that is due before all others changes how long anyone may sleep."""
    store.publish(message(delay_ms=50_000))
    assert "q" == notify(store)
    store.publish(message(delay_ms=90_000))
    assert silent(store)
    store.publish(message(delay_ms=20_000))
    assert "q" == notify(store)


def test_what_leaves_nothing_to_take_is_silent(quiet):
    """Ack, renewal, dead letter, refused returns and empty passes wake nobody."""
    first, second = quiet.held
    quiet.ack(first.tag)
    quiet.renew(second)
    quiet.release("released", first)
    quiet.restore()
    quiet.dead_letter(second)
    quiet.reserve()
    assert silent(quiet)


def test_a_duplicate_is_silent(store):
    """A retry of what is stored already brings nothing to take."""
    sent = message(number=1, low_water=1)
    store.publish(sent)
    store.take()
    while not silent(store):
        pass
    store.publish(sent)
    assert silent(store)


def test_a_paused_queue_does_not_announce_what_it_keeps(store):
    """A reserve that may not take does not wake the next one to try in vain."""
    store.publish(message())
    assert "q" == notify(store)
    store.pause(True)
    store.reserve()
    assert silent(store)


@pytest.mark.slow
def test_one_ring_wakes_one(connect):
    """Of several that wait, one is woken for one message: no herd."""
    waiting = [connect(f"s/{n}") for n in range(4)]
    for store in waiting:
        store.store.notifier.listen(["q"], 1.0)
    waiting[0].publish(message())
    assert [None, None, None, "q"] == sorted(map(heard, waiting), key=str)


def test_a_hundred_messages_are_one_ring(store):
    """The notification is a hint: it does not count."""
    store.publish(*(message() for _ in range(100)))
    assert "q" == notify(store)
    assert silent(store)


def test_a_bell_that_rang_before_is_heard(store):
    """Who begins to wait after the publish does not miss it."""
    store.publish(message())
    assert "q" == notify(store)


def test_a_wait_ends_when_its_time_is_up(store):
    """Without a ring: take_notification says so."""
    before = monotonic()
    assert notify(store, timeout_s=0.2) is None
    assert 0.1 < monotonic() - before < 10


def test_waits_for_what_it_was_told(store):
    """The queues of the wait are known, until another begins."""
    notifier = store.store.notifier
    assert not notifier.listening
    notifier.listen(["q", "r"], 0.05)
    assert notifier.listening
    assert {"q", "r"} == notifier.queues
    notifier.listen(["other"], 0.05)
    assert {"q", "r"} == notifier.queues
    assert heard(store) is None
    assert not notifier.listening
    notifier.listen(["other"], 0.05)
    assert {"other"} == notifier.queues
    assert heard(store) is None


def test_a_wait_can_be_ended(store):
    """end_wait lets it begin anew for other queues, long before its time is up."""
    notifier = store.store.notifier
    notifier.listen(["q"], 30.0)
    assert not notifier.wait(0.05)
    store.store.notifier.end_wait()
    store.store.wait_for_replies()
    assert heard(store) is None
    store.store.notifier.end_wait()
    store.publish(message("r"))
    assert "r" == notify(store, "r")


def test_wake_ends_the_wait_of_another_thread(store):
    """The broker's wait goes on: what rings later is heard."""
    notifier = store.store.notifier
    notifier.listen(["q"], 30.0)
    results = []
    thread = threading.Thread(target=lambda: results.append(notifier.wait(20.0)))
    thread.start()
    # Woken until it wakes: the thread may not wait yet when the first call comes.
    wait_until(lambda: notifier.wake() or results, interval_s=0.01)
    thread.join(10)
    assert [False] == results
    assert notifier.listening
    store.publish(message())
    assert "q" == heard(store)


def test_a_wake_that_comes_first_is_not_lost(store):
    """A thread that was woken just before it waits, in a wait that has begun, does not wait."""
    notifier = store.store.notifier
    notifier.listen(["q"], 30.0)
    notifier.wait(0.01)
    notifier.wake()
    before = monotonic()
    assert not notifier.wait(20.0)
    assert monotonic() - before < 10


def test_no_command_waits_for_the_bell(store):
    """While the notifier waits, the store answers."""
    store.store.notifier.listen(["q"], 30.0)
    before = monotonic()
    store.publish(message("r"))
    store.take(queue="r")
    assert monotonic() - before < 10


def test_a_closed_notifier_waits_no_more(connect):
    """Closing needs no goodbye, and takes no ring from who still waits for long."""
    gone, waiting = connect("s/1"), connect("s/2")
    gone.store.notifier.listen(["left"], 30.0)
    gone.store.notifier.wait(0.05)
    gone.store.close()
    assert not gone.store.notifier.listening
    waiting.store.notifier.listen(["left"], 30.0)
    waiting.publish(message("left"))
    # The broker may have rung for the one that is gone; then a pass makes up for it.
    wait_until(
        lambda: waiting.restore(queue="left") and waiting.store.notifier.receive(), interval_s=0.05
    )
    assert "left" == waiting.store.notifier.take_notification()


def test_a_pass_rings_for_what_is_due(store):
    """Whoever knew when to look may have died: a pass wakes another for a due message."""
    store.publish(message(delay_ms=1))
    store.store.notifier.listen(["q"], 5.0)
    store.wait_to_the_end()  # the ring of the publish
    store.pass_time(2)
    store.store.notifier.listen(["q"], 5.0)
    store.restore()
    store.wait_to_the_end()


def test_a_pass_does_not_ring_for_a_paused_queue(store):
    """There is nothing to be had."""
    store.publish(message())
    store.store.pause("q", True)
    store.store.notifier.listen(["q"], 0.2)
    store.wait_to_the_end()
    assert "q" == store.store.notifier.take_notification()  # that of the publish
    store.restore()
    store.store.notifier.listen(["q"], 0.2)
    store.wait_to_the_end()
    assert store.store.notifier.take_notification() is None
