import pytest

from tests.contract.steps import LONG_MS, envelopes, message
from tests.support.waiting import wait_until


def due(store, queue="q"):
    """Wait until *queue* has no delayed messages."""
    wait_until(
        lambda: store.promote(queue) and "delayed" not in store.places(queue),
        interval_s=0.002,
    )


def expired(store, number, queue="q"):
    """Wait until *number* messages have expired."""
    wait_until(
        lambda: store.promote(queue) and number == store.ledger("expired", queue),
        interval_s=0.002,
    )


# -- delay


@pytest.mark.slow
def test_a_delayed_message_waits(store):
    """A delayed message is not delivered before it is due, and reserve reports the time left."""
    store.publish(message(delay_ms=LONG_MS))
    reservation = store.reserve()
    assert [] == reservation.deliveries
    assert not reservation.left
    assert 0 < reservation.next_due_ms <= LONG_MS
    assert {"delayed": 1} == store.places()


def test_the_earliest_is_the_next_due(store):
    """next_due_ms is that of the earliest delayed message; -1 without delayed messages."""
    assert -1 == store.reserve().next_due_ms
    store.publish(message(delay_ms=500_000), message(delay_ms=20_000), message(delay_ms=90_000))
    assert 0 < store.reserve().next_due_ms <= 20_000


def test_a_delayed_message_is_given_out_when_it_is_due(store):
    """A reserve after the delay promotes and takes a message in one step, as never delivered."""
    store.publish(message(delay_ms=5, envelope=b"late"))
    (delivery,) = wait_until(lambda: store.reserve().deliveries, interval_s=0.002)
    assert (b"late", -1) == (delivery.envelope, delivery.failed)


def test_a_due_message_queues_behind_what_is_ready(store):
    """A promoted message is behind the ready ones of its rank and before later ones."""
    delayed = [b"1", b"2", b"3"]
    store.publish(*(message(delay_ms=1, envelope=envelope) for envelope in delayed))
    store.publish(message(envelope=b"before"))
    due(store)
    store.publish(message(envelope=b"after"))
    assert [b"before", *delayed, b"after"] == envelopes(store.reserve(9))


def test_a_due_message_keeps_its_priority(store):
    """A promoted message keeps the rank of its publish."""
    store.publish(message(rank=5, envelope=b"five"), message(rank=255, envelope=b"last"))
    store.publish(message(rank=0, delay_ms=1, envelope=b"first"))
    due(store)
    assert [b"first", b"five", b"last"] == envelopes(store.reserve(9))


def test_hundreds_become_due_in_order(store):
    """Hundreds of due messages are promoted in several steps, in order and without loss."""
    sent = [b"%d" % number for number in range(450)]
    store.publish(*(message(delay_ms=1, envelope=envelope) for envelope in sent))
    due(store)
    assert {"ready": 450} == store.places()
    assert sent == [delivery.envelope for delivery in store.take(450)]


# -- expiry


def test_an_expired_message_is_not_given_out(store):
    """An expired message leaves the queue and is counted; other messages stay."""
    store.publish(message(ttl_ms=0), message(envelope=b"stays"), message(ttl_ms=LONG_MS))
    assert [b"stays", b""] == envelopes(store.reserve(9))
    assert 1 == store.ledger("expired")
    assert {"unacked": 2} == store.places()


def test_a_message_expires_while_it_waits(store):
    """A time to live counts from the publish, on the broker's clock."""
    store.publish(message(ttl_ms=30))
    expired(store, 1)
    assert {} == store.places()


def test_the_time_to_live_of_a_delayed_message_begins_when_it_is_due(store):
    """The time to live of a delayed message begins when it is due, not before."""
    store.publish(message(delay_ms=LONG_MS, ttl_ms=0))
    store.pass_time(2)
    store.reserve()
    assert {"delayed": 1} == store.places()


def test_expiry_goes_before_promotion(store):
    """A message that was due and has expired since is dropped, not promoted."""
    store.publish(message(delay_ms=1, ttl_ms=0))
    expired(store, 1)
    assert {} == store.places()
    assert [] == store.reserve().deliveries


@pytest.mark.parametrize("no_ack", [False, True])
def test_hundreds_expire_and_none_is_given_out(store, no_ack):
    """A reserve skips hundreds of expired messages and delivers only others."""
    store.publish(*(message(ttl_ms=0) for _ in range(450)), message(envelope=b"stays"))
    taken = []
    while not taken:
        taken = envelopes(store.reserve(9, no_ack=no_ack))
    assert [b"stays"] == taken


@pytest.mark.parametrize(("queue_ms", "message_ms"), [(0, LONG_MS), (LONG_MS, 0), (0, -1)])
def test_the_shorter_time_to_live_counts(store, queue_ms, message_ms):
    """The shorter one of the queue's x-message-ttl and the message's own time to live counts."""
    store.declare(message_ttl=str(queue_ms))
    store.publish(message(ttl_ms=message_ms))
    assert [] == store.reserve().deliveries
    assert 1 == store.ledger("expired")


def test_a_long_time_to_live_of_the_queue_expires_nothing(store):
    """x-message-ttl expires no message before its time."""
    store.declare(message_ttl=str(LONG_MS))
    store.publish(message(envelope=b"stays"))
    assert [b"stays"] == envelopes(store.reserve())


def held_past_its_time(store):
    """Return a delivery that was taken in time and whose time to live has passed since."""
    ttl_ms = 10
    while True:
        store.publish(message(ttl_ms=ttl_ms))
        if taken := store.reserve().deliveries:
            break
        ttl_ms *= 2  # a slow moment of the machine
    store.pass_time(ttl_ms)
    return taken[0]


def test_a_held_message_does_not_expire(store):
    """A held message does not expire: its time to live counts only while it waits."""
    held = held_past_its_time(store)
    before = store.ledger("expired")
    store.promote()
    assert {"unacked": 1} == store.places()
    assert 1 == store.ack(held.tag)
    assert before == store.ledger("expired")


@pytest.mark.parametrize("how", ["undelivered", "released", "nacked", "ended"])
def test_a_message_that_comes_back_too_late_expires(store, how):
    """A message that is returned after its time to live expires and is counted."""
    held = held_past_its_time(store)
    before = store.ledger("expired")
    if how == "ended":
        store.return_ended(held)
    else:
        assert [] == store.release(how, held)
    assert {"ready": 1} == store.places()
    assert [] == store.reserve().deliveries
    assert before + 1 == store.ledger("expired")


def test_a_restored_message_still_expires(store):
    """A message whose lease ended keeps its time to live and expires while it waits."""
    store.publish(message(ttl_ms=200))
    store.return_ended(*store.take())
    expired(store, 1)
    assert {} == store.places()


@pytest.mark.parametrize("end", ["purge", "late ack", "dead letter", "no_ack", "ack"])
def test_nothing_is_left_to_expire_of_a_message_that_is_gone(store, end):
    """A message that is gone does not expire later, so it is not counted twice."""
    store.publish(message(ttl_ms=200))
    if end == "purge":
        store.purge()
    elif end == "no_ack":
        assert store.reserve(no_ack=True).deliveries
    else:
        (held,) = store.take()
        if end == "dead letter":
            store.dead_letter(held)
        elif end == "late ack":
            store.release("released", held)
        store.ack(held.tag)
    store.pass_time(200)
    store.reserve()
    assert 0 == store.ledger("expired")


# -- expired messages as dead letters


@pytest.mark.parametrize("delay_ms", [0, 1])
def test_an_expired_message_becomes_a_dead_letter_where_the_queue_asks(store, delay_ms):
    """An expired message becomes a dead letter if the queue is declared so.

    It may be ready or delayed. It keeps its reason and counts as dead, not as expired.
    """
    store.declare(arguments=b"a", dead_expired="1")
    sent = message(ttl_ms=1, delay_ms=delay_ms)
    store.publish(sent)
    store.pass_time(3)
    assert [] == store.reserve().deliveries
    assert {"dead": 1} == store.places()
    (dead_letter,) = store.store.reads.dead_letters("q", 9)
    assert (sent.tag, "expired", 0) == (dead_letter.tag, dead_letter.reason, dead_letter.count)
    assert (0, 1) == (store.ledger("expired"), store.ledger("dead_lettered"))


def test_hundreds_that_expire_at_once_become_dead_letters(store):
    """Hundreds of messages that expire at once become dead letters and none is delivered.

    This includes those beyond the number that one call checks.
    """
    store.declare(arguments=b"a", dead_expired="1")
    store.publish(*(message(ttl_ms=1) for _ in range(450)))
    store.pass_time(3)
    while store.places() != {"dead": 450}:
        assert [] == store.reserve(100).deliveries


# -- without a reserve


def test_messages_expire_though_nobody_reserves(store):
    """Messages expire without a reserve, some hundred per step; held and unexpired ones stay."""
    store.publish(message(envelope=b"held"))
    store.take()
    store.publish(*(message(ttl_ms=0, delay_ms=number % 2) for number in range(450)))
    store.publish(message(envelope=b"stays"), message(ttl_ms=LONG_MS))
    store.pass_time(2)
    assert store.expire()
    assert store.expire()
    assert not store.expire()
    assert not store.expire()
    assert {"ready": 2, "unacked": 1} == store.places()
    assert 450 == store.ledger("expired")


def test_messages_expire_to_the_dead_letters_though_nobody_reserves(store):
    """Messages expire to dead letters without a reserve, with the reason, if declared so."""
    store.declare(arguments=b"a", dead_expired="1", max_bytes="1000")
    store.publish(message(ttl_ms=0, envelope=b"x" * 10), message(envelope=b"y" * 7))
    store.pass_time(2)
    store.expire()
    assert {"ready": 1, "dead": 1} == store.places()
    assert ["expired"] == [
        dead_letter.reason for dead_letter in store.store.reads.dead_letters("q", 9)
    ]
    assert 7 == store.ledger("waiting_bytes")


def test_there_is_nothing_to_expire_in_a_queue_that_is_not_there(store):
    """A query for expired messages does not create a queue."""
    assert not store.expire()
    assert store.store.reads.status("q") is None
