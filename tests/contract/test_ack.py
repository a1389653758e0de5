from dataclasses import replace

import pytest

from tests.contract.steps import LONG_MS, message


@pytest.mark.slow
def test_an_ack_finishes_the_message(store):
    """An ack removes its message and counts it; other messages stay."""
    store.publish(message(), message())
    first, _ = store.take(2)
    assert 1 == store.ack(first.tag)
    assert {"unacked": 1} == store.places()
    assert 1 == store.ledger("acked")


def test_acking_twice_is_harmless(store):
    """A second ack finds no message and changes nothing."""
    store.publish(message())
    (held,) = store.take()
    assert [1, 0] == [store.ack(held.tag), store.ack(held.tag)]
    assert 1 == store.ledger("acked")


@pytest.mark.parametrize("queue", ["q", "unknown"])
def test_an_unknown_tag_is_harmless(store, queue):
    """An ack of an unknown tag changes nothing and creates no queue."""
    store.publish(message())
    assert 0 == store.ack("05" + "0" * 28, queue=queue)
    assert {"ready": 1} == store.places()
    assert store.store.reads.status("unknown") is None


def test_an_ack_counts_what_was_still_there(store):
    """An ack of many tags finishes the messages that are still there.

    They may be acked, gone, ready, delayed, dead or held by another consumer.
    """
    store.publish(*(message() for _ in range(4)), message(delay_ms=LONG_MS))
    acked, ready, dead, held = store.take(4)
    delayed = message(delay_ms=LONG_MS)
    store.publish(delayed)
    store.ack(acked.tag)
    store.release("released", ready)
    store.dead_letter(dead)
    tags = [acked.tag, ready.tag, dead.tag, held.tag, delayed.tag, "gone"]
    assert 4 == store.ack(*tags)
    assert {"delayed": 1} == store.places()
    assert [] == store.store.reads.dead_letters("q", 9)


# -- late acks: the lease was lost, but the work is done


@pytest.mark.parametrize("how", ["undelivered", "released", "nacked", "ended"])
def test_a_late_ack_cancels_a_redelivery(store, other, how):
    """A late ack finishes a message that waits for redelivery, so no consumer gets it."""
    store.publish(message())
    (held,) = store.take()
    if how == "ended":
        store.return_ended(held)
    else:
        store.release(how, held)
    assert {"ready": 1} == store.places()
    assert 1 == store.ack(held.tag)
    assert {} == store.places()
    assert [] == other.reserve().deliveries


def test_a_late_ack_is_accepted_while_another_holds_the_message(store, other):
    """A late ack finishes a message that another consumer holds.

    The work is done: the other lease ends, and the other consumer's ack finds nothing.
    """
    store.publish(message())
    (late,) = store.take()
    store.return_ended(late)
    (its,) = other.take()
    assert 1 == store.ack(late.tag)
    assert {} == store.places()
    assert [its.tag] == other.renew(its)
    assert [its.tag] == other.release("nacked", its)
    assert [its.tag] == other.dead_letter(its)
    assert 0 == other.ack(its.tag)
    assert 1 == store.ledger("acked")


def test_a_late_ack_takes_a_message_out_of_the_dead(store):
    """A late ack of a dead-lettered message removes the dead letter."""
    store.publish(message())
    (held,) = store.take()
    store.dead_letter(held)
    assert 1 == store.ack(held.tag)
    assert {} == store.places()
    assert [] == store.store.reads.dead_letters("q", 9)


def test_an_ack_by_tag_finishes_a_delayed_message(store):
    """An ack by tag finishes a delayed message: an ack finishes a message in any state."""
    sent = message(delay_ms=LONG_MS)
    store.publish(sent)
    assert 1 == store.ack(sent.tag)
    assert {} == store.places()
    assert -1 == store.reserve().next_due_ms


def test_the_failures_are_forgotten_with_the_message(store):
    """An ack removes the failure count of its message."""
    sent = message()
    store.publish(sent)
    store.release("nacked", *store.take())
    (held,) = store.take()
    assert 1 == held.failed
    store.ack(held.tag)
    store.publish(sent)
    assert -1 == store.take()[0].failed


@pytest.mark.parametrize("number", [201, 1_000])
def test_hundreds_are_acked_in_one_call(store, number):
    """All of hundreds of messages are acked in one call."""
    assert min(store.publish(*(message() for _ in range(number)))) > 0
    tags = [delivery.tag for delivery in store.take(number)]
    assert number == store.ack(*tags)
    assert {} == store.places()


def test_an_ack_is_for_one_queue(store):
    """An ack applies to one queue: the same tag in another queue is another message."""
    sent = message()
    store.publish(sent, replace(sent, queue="r"))
    store.take()
    store.take(queue="r")
    assert 1 == store.ack(sent.tag)
    assert {"unacked": 1} == store.places("r")
