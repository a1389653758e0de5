import pytest

from tests.contract.steps import message


def test_gives_up_and_says_why(store):
    """A dead letter is kept with its reason, failures, consumer and error."""
    sent = message()
    store.publish(sent)
    store.release("nacked", *store.take())
    assert [] == store.dead_letter(*store.take(), reason="undecodable", error="not JSON")
    assert {"dead": 1} == store.places()
    assert 1 == store.ledger("dead_lettered")
    (dead_letter,) = store.store.reads.dead_letters("q", 9)
    assert (sent.tag, "undecodable", 1, "s/1", "not JSON") == (
        dead_letter.tag,
        dead_letter.reason,
        dead_letter.count,
        dead_letter.consumer,
        dead_letter.error,
    )


@pytest.mark.parametrize("error", ["", "a|b|c", "two\nlines\r\n", "ünïcode \U0001f600", "%s {}"])
def test_any_error_text_is_kept(store, error):
    """The text of an error is kept exactly."""
    store.publish(message())
    store.dead_letter(*store.take(), error=error)
    (dead_letter,) = store.store.reads.dead_letters("q", 9)
    assert ("rejected", error) == (dead_letter.reason, dead_letter.error)


def test_a_late_one_is_refused(store, other):
    """A consumer that lost a lease cannot dead-letter a message that another consumer holds."""
    store.publish(message())
    (late,) = store.take()
    store.return_ended(late)
    (its,) = other.take()
    assert [late.tag] == store.dead_letter(late)
    assert {"unacked": 1} == store.places()
    assert [] == other.renew(its)


def test_what_is_not_held_is_refused(store):
    """Only held messages are dead-lettered; ready, acked and dead ones stay as they are."""
    store.publish(*(message() for _ in range(4)))
    ready, acked, dead, held = store.take(4)
    store.release("released", ready)
    store.ack(acked.tag)
    store.dead_letter(dead)
    refused = store.dead_letter(ready, acked, dead, held, reason="again")
    assert [ready.tag, acked.tag, dead.tag] == refused
    assert {"ready": 1, "dead": 2} == store.places()
    assert ["rejected", "again"] == [
        dead_letter.reason for dead_letter in store.store.reads.dead_letters("q", 9)
    ]


def test_oldest_first_and_no_more_than_asked(store):
    """Dead letters are listed in the order of their deaths, up to a limit."""
    store.publish(*(message() for _ in range(3)))
    taken = store.take(3)
    for delivery in reversed(taken):
        store.dead_letter(delivery)
    dead_letters = store.store.reads.dead_letters("q", 9)
    died = [dead_letter.died_ms for dead_letter in dead_letters]
    assert sorted(died) == died
    assert {delivery.tag for delivery in taken} == {dead_letter.tag for dead_letter in dead_letters}
    assert dead_letters[:2] == store.store.reads.dead_letters("q", 2)
    assert [] == store.store.reads.dead_letters("unknown", 9)


@pytest.mark.slow
def test_a_dead_letter_is_given_to_nobody(store):
    """A dead letter is not delivered, purged or restored, and does not expire."""
    store.publish(message(ttl_ms=2000))
    store.dead_letter(*store.take())
    store.pass_time(2000)
    assert [] == store.reserve().deliveries
    assert 0 == store.purge()
    assert {} == store.restore(force=True).by_consumer
    assert {"dead": 1} == store.places()


def test_above_the_cap_the_oldest_go(connect):
    """Above dead_letter_max, the oldest dead letters are dropped and counted."""
    store = connect(dead_letter_max=2)
    store.publish(*(message() for _ in range(5)))
    for delivery in (taken := store.take(5)):
        store.dead_letter(delivery)
    assert {"dead": 2} == store.places()
    assert 3 == store.ledger("dropped")
    kept = {dead_letter.tag for dead_letter in store.store.reads.dead_letters("q", 9)}
    assert kept <= {delivery.tag for delivery in taken}


def test_dropped_letters_are_the_oldest(store, connect):
    """A lowered cap drops the dead letters that died first."""
    store.publish(*(message() for _ in range(5)))
    for delivery in store.take(5):
        store.dead_letter(delivery)
    dead_letters = store.store.reads.dead_letters("q", 9)
    connect("s/2", dead_letter_max=2).restore()
    assert dead_letters[3:] == store.store.reads.dead_letters("q", 9)


def test_hundreds_die_in_one_call(connect):
    """One call dead-letters more than fit in one step, names the refused, and keeps the cap."""
    store = connect(dead_letter_max=100)
    store.publish(*(message() for _ in range(450)))
    taken = store.take(450)
    store.ack(taken[0].tag, taken[449].tag)
    assert [taken[0].tag, taken[449].tag] == store.dead_letter(*taken)
    assert {"dead": 100} == store.places()
    assert (448, 348) == (store.ledger("dead_lettered"), store.ledger("dropped"))


def test_the_failures_of_a_dropped_letter_are_forgotten(connect):
    """A dropped dead letter leaves no failure count for a message of the same tag."""
    store = connect(dead_letter_max=1)
    sent = message()
    store.publish(sent)
    store.release("nacked", *store.take())
    store.dead_letter(*store.take())
    store.publish(message())
    store.dead_letter(*store.take())
    assert 1 == store.ledger("dropped")
    left = {dead_letter.tag for dead_letter in store.store.reads.dead_letters("q", 9)}
    if sent.tag not in left:  # both may have died in the same ms
        store.publish(sent)
        assert -1 == store.take()[0].failed
