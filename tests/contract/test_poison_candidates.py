"""A message that has failed twice is a poison candidate: a consumer holds one at a time."""

import pytest

from tests.contract.steps import message


def poison_candidates(store, number, failures=2):
    """Publish *number* messages and let each fail so often; return their tags in order."""
    sent = [message() for _ in range(number)]
    store.publish(*sent)
    for _ in range(failures):
        store.release("nacked", *store.take(number))
    return [item.tag for item in sent]


def innocents(store, number):
    """Publish *number* messages that never failed; return their tags in order."""
    sent = [message() for _ in range(number)]
    store.publish(*sent)
    return [item.tag for item in sent]


def reserved(store, n=9):
    """Return the tags of what a reserve gives."""
    return [delivery.tag for delivery in store.reserve(n).deliveries]


def failures_of(store, *tags):
    """Return how often each has failed, as its next consumer is told."""
    found = {}
    while taken := store.reserve(9).deliveries:
        found |= {delivery.tag: delivery.failed for delivery in taken}
        store.ack(*(delivery.tag for delivery in taken))
    return [found[tag] for tag in tags]


@pytest.mark.slow
def test_a_consumer_is_given_one_candidate_at_a_time(connect):
    """Beside one that it holds it is given what is innocent; each other consumer gets its own."""
    first, second, third = (connect(f"s/{n}") for n in (1, 2, 3))
    a, b, c = poison_candidates(first, 3)
    d, e = innocents(first, 2)
    assert [a, d, e] == reserved(first)
    assert [] == reserved(first)
    assert [b] == reserved(second)
    assert [c] == reserved(third)


def test_an_innocent_message_is_found_behind_candidates(connect):
    """Those that may not be taken keep nobody from what stands behind them."""
    store = connect()
    first = poison_candidates(store, 4)[0]
    (behind,) = innocents(store, 1)
    assert [first] == reserved(store, 1)
    assert [behind] == reserved(store, 1)


def test_candidates_that_were_passed_over_keep_their_place(connect, other):
    """They are served in their order, before what was published after them."""
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
    """However a consumer parts with one, it may be given another then."""
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
    """When a consumer dies with one, a message that is new to it may have been what killed."""
    (poison_candidate,) = poison_candidates(store, 1)
    beside = innocents(store, 3)
    store.return_ended(*store.take(4))
    assert [3, 1, 1, 1] == failures_of(other, poison_candidate, *beside)


def test_without_a_candidate_all_are_counted(store, other):
    """Nobody knows which of them it was."""
    tags = innocents(store, 3)
    store.return_ended(*store.take(3))
    assert [1, 1, 1] == failures_of(other, *tags)


def test_deaths_at_one_time_count_once_each(store, other):
    """Another consumer that dies at the same time had a reason of its own."""
    (poison_candidate,) = poison_candidates(store, 1)
    (beside,) = innocents(store, 1)
    held = store.take(2)
    (elsewhere,) = innocents(store, 1)
    store.return_ended(*held, *other.take())
    assert [3, 1, 1] == failures_of(other, poison_candidate, beside, elsewhere)


def test_hundreds_beside_a_candidate_are_counted(store):
    """Also those that go back in later steps of the pass than the candidate."""
    (poison_candidate,) = poison_candidates(store, 1)
    innocents(store, 449)
    store.end(*store.take(450))
    while store.restore(force=True).more:
        pass
    found = {delivery.tag: delivery.failed for delivery in store.take(450)}
    assert 3 == found.pop(poison_candidate)
    assert {1} == set(found.values())


def test_the_one_that_kills_meets_its_limit_and_its_neighbours_do_not(connect):
    """Consumers take what they get; one that gets the killer dies, any other finishes all."""
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
    """Where no message is dead-lettered, all are given out as they come."""
    store = connect(delivery_limit=None)
    sent = [message() for _ in range(3)]
    store.publish(*sent)
    for _ in range(5):
        store.release("nacked", *store.take(3))
    assert [item.tag for item in sent] == reserved(store)


def test_a_candidate_that_is_done_clears_nobody(store):
    """Once it is acked, what its consumer takes next is counted like anything else."""
    (poison_candidate,) = poison_candidates(store, 1)
    store.take()
    store.ack(poison_candidate)
    (later,) = innocents(store, 1)
    store.return_ended(*store.take())
    assert [1] == failures_of(store, later)


def test_who_may_take_nothing_is_not_sent_to_try_again(store):
    """A consumer that holds a candidate, where only candidates are left, has nothing to ask for."""
    poison_candidates(store, 2)
    store.take()
    reservation = store.reserve(9)
    assert [] == reservation.deliveries
    assert not reservation.left


def test_a_candidate_that_was_acked_is_to_blame_for_nothing(store):
    """Its neighbour's failure after that is counted like any other."""
    poison_candidates(store, 1)
    store.publish(message())
    poison_candidate, innocent = store.take(2)
    store.ack(poison_candidate.tag)
    store.return_ended(innocent)
    assert 1 == store.take()[0].failed


def test_a_consumer_that_died_leaves_no_mark(store):
    """What named its candidate goes with its leases."""
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
    """Whoever leaves in order has no candidate any more; whoever died is still judged by it."""
    store = connect("s/1", delivery_limit=3)
    store.declare()
    store.store.attach("q", "s", 1)
    (poison_candidate,) = poison_candidates(store, 1)
    store.end(*store.take())
    store.store.attach("q", "s", 0)  # removed by another, who found it dead
    assert [poison_candidate] == [item.tag for item in store.restore(force=True).dead]
