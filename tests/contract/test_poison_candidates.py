"""A message that failed twice is a poison candidate: a consumer holds at most one."""

import pytest

from tests.contract.steps import message


def poison_candidates(store, number, failures=2):
    """Publish *number* messages and fail each *failures* times; return their tags in order."""
    sent = [message() for _ in range(number)]
    store.publish(*sent)
    for _ in range(failures):
        store.release("nacked", *store.take(number))
    return [item.tag for item in sent]


def innocents(store, number):
    """Publish *number* messages without failures; return their tags in order."""
    sent = [message() for _ in range(number)]
    store.publish(*sent)
    return [item.tag for item in sent]


def reserved(store, n=9):
    """Return the tags of the messages of one reserve."""
    return [delivery.tag for delivery in store.reserve(n).deliveries]


def failures_of(store, *tags):
    """Return the failures of each message, as reported to its next consumer."""
    found = {}
    while taken := store.reserve(9).deliveries:
        found |= {delivery.tag: delivery.failed for delivery in taken}
        store.ack(*(delivery.tag for delivery in taken))
    return [found[tag] for tag in tags]


@pytest.mark.slow
def test_a_consumer_is_given_one_candidate_at_a_time(connect):
    """A consumer gets one candidate at a time, together with messages that are no candidates."""
    first, second, third = (connect(f"s/{n}") for n in (1, 2, 3))
    a, b, c = poison_candidates(first, 3)
    d, e = innocents(first, 2)
    assert [a, d, e] == reserved(first)
    assert [] == reserved(first)
    assert [b] == reserved(second)
    assert [c] == reserved(third)


def test_an_innocent_message_is_found_behind_candidates(connect):
    """Candidates that may not be taken do not hide the messages behind them."""
    store = connect()
    first = poison_candidates(store, 4)[0]
    (behind,) = innocents(store, 1)
    assert [first] == reserved(store, 1)
    assert [behind] == reserved(store, 1)


def test_candidates_that_were_passed_over_keep_their_place(connect, other):
    """Skipped candidates keep their order and precede messages published after them."""
    store = connect()
    first, *passed_over = poison_candidates(store, 4)
    assert [first] == reserved(store)
    innocents(store, 1)
    for expected in passed_over:
        (delivery,) = other.reserve(1).deliveries
        assert expected == delivery.tag
        other.ack(delivery.tag)


@pytest.mark.parametrize("end", ["ack", "released", "dead letter", "restored", "acked by another"])
def test_the_next_candidate_comes_when_the_first_is_done(store, other, end):
    """A consumer may get the next candidate when it no longer holds the first, for any reason."""
    first, second = poison_candidates(store, 2)
    (held,) = store.reserve(9).deliveries
    assert first == held.tag
    if end == "ack":
        store.ack(first)
    elif end == "acked by another":
        other.ack(first)
    elif end == "released":
        store.release("nacked", held)
        other.take()
    elif end == "dead letter":
        store.dead_letter(held)
    else:
        store.return_ended(held)
        other.take()
    assert [second] == reserved(store)


def test_all_that_lay_beside_it_is_counted(store, other):
    """All messages that a consumer held with a candidate at its death count as failed.

    Any of them may have caused the death.
    """
    (poison_candidate,) = poison_candidates(store, 1)
    beside = innocents(store, 3)
    store.return_ended(*store.take(4))
    assert [3, 1, 1, 1] == failures_of(other, poison_candidate, *beside)


def test_without_a_candidate_all_are_counted(store, other):
    """Without a candidate all held messages count, as the cause is unknown."""
    tags = innocents(store, 3)
    store.return_ended(*store.take(3))
    assert [1, 1, 1] == failures_of(other, *tags)


def test_deaths_at_one_time_count_once_each(store, other):
    """Concurrent deaths of two consumers count separately, each with its own messages."""
    (poison_candidate,) = poison_candidates(store, 1)
    (beside,) = innocents(store, 1)
    held = store.take(2)
    (elsewhere,) = innocents(store, 1)
    store.return_ended(*held, *other.take())
    assert [3, 1, 1] == failures_of(other, poison_candidate, beside, elsewhere)


def test_hundreds_beside_a_candidate_are_counted(store):
    """Hundreds of messages beside a candidate all count, over several steps of the pass."""
    (poison_candidate,) = poison_candidates(store, 1)
    innocents(store, 449)
    store.end(*store.take(450))
    while store.restore(force=True).more:
        pass
    found = {delivery.tag: delivery.failed for delivery in store.take(450)}
    assert 3 == found.pop(poison_candidate)
    assert {1} == set(found.values())


def test_the_one_that_kills_meets_its_limit_and_its_neighbours_do_not(connect):
    """A message that kills its consumers reaches its limit; the messages beside it do not.

    A consumer that gets the message dies; any other finishes all of its messages.
    """
    reaper = connect("s/99", delivery_limit=4)
    tags = innocents(reaper, 6)
    dead = []
    for number in range(20):
        victim = connect(f"s/{number}", delivery_limit=4)
        taken = victim.reserve(9).deliveries
        if tags[2] in {delivery.tag for delivery in taken}:
            reaper.end(*taken)
            dead += (item.tag for item in reaper.restore(force=True).dead)
        else:
            victim.ack(*(delivery.tag for delivery in taken), "gone")
    assert [tags[2]] == dead
    assert 5 == reaper.ledger("acked")


def test_one_less_than_the_limit_is_soon_enough(connect):
    """With delivery_limit 2, a message that failed once is a candidate."""
    store = connect(delivery_limit=2)
    first, _ = poison_candidates(store, 2, failures=1)
    assert [first] == reserved(store)
    assert {"ready": 1, "unacked": 1} == store.places()


def test_without_a_limit_there_are_no_candidates(connect):
    """Without a delivery limit there are no candidates, and all messages are delivered in order."""
    store = connect(delivery_limit=None)
    sent = [message() for _ in range(3)]
    store.publish(*sent)
    for _ in range(5):
        store.release("nacked", *store.take(3))
    assert [item.tag for item in sent] == reserved(store)


def test_a_candidate_that_is_done_clears_nobody(store):
    """A later message counts normally after the ack of a candidate."""
    (poison_candidate,) = poison_candidates(store, 1)
    store.take()
    store.ack(poison_candidate)
    (later,) = innocents(store, 1)
    store.return_ended(*store.take())
    assert [1] == failures_of(store, later)


def test_who_may_take_nothing_is_not_sent_to_try_again(store):
    """A reserve that may take none of the remaining candidates reports that nothing is left."""
    poison_candidates(store, 2)
    store.take()
    reservation = store.reserve(9)
    assert [] == reservation.deliveries
    assert not reservation.left


def test_a_candidate_that_was_acked_is_to_blame_for_nothing(store):
    """The failure of another message counts after the ack of a candidate."""
    poison_candidates(store, 1)
    store.publish(message())
    poison_candidate, innocent = store.take(2)
    store.ack(poison_candidate.tag)
    store.return_ended(innocent)
    assert 1 == store.take()[0].failed


def test_a_consumer_that_died_leaves_no_mark(store):
    """The record of a candidate is removed with the leases of a dead consumer."""
    poison_candidates(store, 1)
    held = store.take()
    assert [2] == [item.failed for item in held]
    store.return_ended(*held)
    (again,) = store.take()
    assert 3 == again.failed
    store.publish(message())
    (innocent,) = store.reserve(1).deliveries
    store.return_ended(again, innocent)
    assert {"ready": 2} == store.places()


def test_a_consumer_that_leaves_takes_its_mark_with_it(connect, engine):
    """The record of a candidate is kept until the leases of a dead consumer are judged.

    A consumer that leaves in order has no candidate any more.
    """
    store = connect("s/1", delivery_limit=3)
    store.declare()
    store.store.attach("q", "s", 1)
    (poison_candidate,) = poison_candidates(store, 1)
    store.end(*store.take())
    store.store.attach("q", "s", 0)  # removed by another consumer, which found it dead
    assert [poison_candidate] == [item.tag for item in store.restore(force=True).dead]
