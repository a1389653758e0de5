import threading
from time import monotonic

import pytest

from tests.contract.steps import LONG_MS, message
from tests.support.waiting import wait_until


def notify(store, *queues, timeout_s=5.0):
    """Wait for a notification of *queues* (default: q); return its queue, or None."""
    until = monotonic() + timeout_s
    while True:
        store.store.notifier.listen(queues or ("q",), max(until - monotonic(), 0.001))
        rang = heard(store)
        # Over several nodes, a part of the wait may end before the others and is restarted.
        if rang is not None or not store.store.has_nodes or monotonic() >= until:
            return rang


def heard(store):
    """Wait until the current wait ends; return the queue of its notification."""
    notifier = store.store.notifier
    deadline = monotonic() + 20
    while notifier.listening:
        assert monotonic() < deadline, "the notifier's wait never ended"
        notifier.wait(1.0)
    return notifier.take_notification()


def silent(store, *queues):
    """Whether no notification is pending."""
    return notify(store, *queues, timeout_s=0.05) is None


@pytest.fixture
def quiet(store, other):
    """Return a store whose queue q has two held messages, a delayed one, and no notification."""
    store.publish(message(), message(), message(delay_ms=LONG_MS))
    store.held = store.take(2)
    while not silent(store):
        pass
    return store


def test_a_publish_rings(store):
    """A publish notifies a waiting consumer, with the queue of the message."""
    assert silent(store, "q", "r")
    store.publish(message("r"))
    assert "r" == notify(store, "q", "r")


def test_a_publish_wakes_who_waits_already(store, other):
    """A publish ends a wait that is in progress, long before its timeout."""
    store.store.notifier.listen(["q"], 30.0)
    assert not store.store.notifier.wait(0.05)
    before = monotonic()
    other.publish(message())
    assert "q" == heard(store)
    assert monotonic() - before < 10


def test_handing_back_rings(store, other):
    """Messages returned by a consumer without acks notify a waiting consumer."""
    store.publish(message())
    taken = store.reserve(no_ack=True).deliveries
    while not silent(other):
        pass
    other.store.notifier.listen(["q"], 30.0)
    store.hand_back(*taken)
    assert "q" == heard(other)


def test_a_ring_is_reported_once(store):
    """take_notification returns the queue of a notification once."""
    store.publish(message())
    assert "q" == notify(store)
    assert store.store.notifier.take_notification() is None


@pytest.mark.parametrize("how", ["undelivered", "released", "nacked"])
def test_a_return_rings(quiet, other, how):
    """A returned message notifies a consumer."""
    quiet.release(how, quiet.held[0])
    assert "q" == notify(other)


def test_a_restore_rings(quiet, other):
    """A message restored from a dead consumer notifies another one."""
    quiet.return_ended(quiet.held[0])
    assert "q" == notify(other)


def test_a_pass_rings_for_what_was_left(store, other):
    """A pass replaces the notification of a consumer that died before it reserved."""
    store.publish(message())
    assert "q" == notify(other)
    assert silent(other)
    store.restore()
    assert "q" == notify(other)


def test_a_reserve_that_leaves_messages_rings(store, other):
    """A reserve that leaves messages notifies the next consumer."""
    store.publish(message(), message())
    assert "q" == notify(other)
    store.reserve(1)
    assert "q" == notify(other)
    store.reserve(1)
    assert silent(other)


def test_a_promotion_rings(store, other):
    """A promotion notifies other consumers of the ready messages."""
    store.publish(message(delay_ms=1))
    while not silent(other):
        pass
    wait_until(lambda: store.promote().left, interval_s=0.002)
    assert "q" == notify(other)


def test_the_earliest_delayed_message_rings(store):
    """A delayed message notifies only if it is due before all others.

    Only then does it shorten the wait of a consumer.
    """
    store.publish(message(delay_ms=50_000))
    assert "q" == notify(store)
    store.publish(message(delay_ms=90_000))
    assert silent(store)
    store.publish(message(delay_ms=20_000))
    assert "q" == notify(store)


def test_what_leaves_nothing_to_take_is_silent(quiet):
    """Steps that leave no message to take do not notify.

    These are acks, renewals, dead letters, refused returns and empty passes.
    """
    first, second = quiet.held
    quiet.ack(first.tag)
    quiet.renew(second)
    quiet.release("released", first)
    quiet.restore()
    quiet.dead_letter(second)
    quiet.reserve()
    assert silent(quiet)


def test_a_duplicate_is_silent(store):
    """A retry of a stored publish does not notify."""
    sent = message(number=1, low_water=1)
    store.publish(sent)
    store.take()
    while not silent(store):
        pass
    store.publish(sent)
    assert silent(store)


def test_a_paused_queue_does_not_announce_what_it_keeps(store):
    """A reserve of a paused queue does not notify the next consumer."""
    store.publish(message())
    assert "q" == notify(store)
    store.pause(True)
    store.reserve()
    assert silent(store)


@pytest.mark.slow
def test_one_ring_wakes_one(connect):
    """One message wakes one of several waiting consumers."""
    waiting = [connect(f"s/{n}") for n in range(4)]
    for store in waiting:
        store.store.notifier.listen(["q"], 1.0)
    waiting[0].publish(message())
    assert [None, None, None, "q"] == sorted(map(heard, waiting), key=str)


def test_a_hundred_messages_are_one_ring(store):
    """A hundred messages lead to one notification, which is a hint and not a count."""
    store.publish(*(message() for _ in range(100)))
    assert "q" == notify(store)
    assert silent(store)


def test_a_bell_that_rang_before_is_heard(store):
    """A consumer that begins to wait after a publish gets its notification."""
    store.publish(message())
    assert "q" == notify(store)


def test_a_wait_ends_when_its_time_is_up(store):
    """A wait without a notification ends at its timeout, and take_notification returns None."""
    before = monotonic()
    assert notify(store, timeout_s=0.2) is None
    assert 0.1 < monotonic() - before < 10


def test_waits_for_what_it_was_told(store):
    """The queues of a wait are known until another wait begins."""
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
    """end_wait ends a wait before its timeout, so that another one can begin."""
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
    """`wake` ends the wait of another thread; the broker's wait continues.

    Later notifications still arrive.
    """
    notifier = store.store.notifier
    notifier.listen(["q"], 30.0)
    results = []
    thread = threading.Thread(target=lambda: results.append(notifier.wait(20.0)))
    thread.start()
    # Repeated until the thread wakes, as it may not wait yet at the first call.
    wait_until(lambda: notifier.wake() or results, interval_s=0.01)
    thread.join(10)
    assert [False] == results
    assert notifier.listening
    store.publish(message())
    assert "q" == heard(store)


def test_a_wake_that_comes_first_is_not_lost(store):
    """A wake shortly before a thread waits ends that wait at once."""
    notifier = store.store.notifier
    notifier.listen(["q"], 30.0)
    notifier.wait(0.01)
    notifier.wake()
    before = monotonic()
    assert not notifier.wait(20.0)
    assert monotonic() - before < 10


def test_no_command_waits_for_the_bell(store):
    """The store replies while the notifier waits."""
    store.store.notifier.listen(["q"], 30.0)
    before = monotonic()
    store.publish(message("r"))
    store.take(queue="r")
    assert monotonic() - before < 10


def test_a_closed_notifier_waits_no_more(connect):
    """A closed notifier waits no more, and takes no notification from others for long."""
    gone, waiting = connect("s/1"), connect("s/2")
    gone.store.notifier.listen(["left"], 30.0)
    gone.store.notifier.wait(0.05)
    gone.store.close()
    assert not gone.store.notifier.listening
    waiting.store.notifier.listen(["left"], 30.0)
    waiting.publish(message("left"))
    # The broker may have notified the closed one; a pass then replaces that notification.
    wait_until(
        lambda: waiting.restore(queue="left") and waiting.store.notifier.receive(), interval_s=0.05
    )
    assert "left" == waiting.store.notifier.take_notification()


def test_a_pass_rings_for_what_is_due(store):
    """A pass notifies a consumer of a due message: the one that knew its time may be dead."""
    store.publish(message(delay_ms=1))
    store.store.notifier.listen(["q"], 5.0)
    store.wait_to_the_end()  # the notification of the publish
    store.pass_time(2)
    store.store.notifier.listen(["q"], 5.0)
    store.restore()
    store.wait_to_the_end()


def test_a_pass_does_not_ring_for_a_paused_queue(store):
    """A pass does not notify consumers of a paused queue, which has no message to take."""
    store.publish(message())
    store.store.pause("q", True)
    store.store.notifier.listen(["q"], 0.2)
    store.wait_to_the_end()
    assert "q" == store.store.notifier.take_notification()  # that of the publish
    store.restore()
    store.store.notifier.listen(["q"], 0.2)
    store.wait_to_the_end()
    assert store.store.notifier.take_notification() is None
