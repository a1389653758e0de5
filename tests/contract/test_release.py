import pytest

from reliq.values.values import Lease
from tests.contract.steps import message

HOW = ["undelivered", "released", "nacked"]


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_goes_back_to_its_own_place(store, how):
    """A returned message is delivered before those that were published after it."""
    store.publish(*(message(envelope=b"%d" % n) for n in range(5)))
    _, second, third, _ = store.take(4)
    assert [] == store.release(how, third, second)
    assert [b"1", b"2", b"4"] == [delivery.envelope for delivery in store.take(3)]


@pytest.mark.parametrize("how", HOW)
def test_keeps_its_priority(store, how):
    """A returned message is behind higher priorities and before lower ones."""
    store.publish(*(message(rank=rank, envelope=b"%d" % rank) for rank in (0, 5, 200)))
    _, middle = store.take(2)
    store.release(how, middle)
    store.publish(message(rank=0, envelope=b"0"))
    assert [b"0", b"5", b"200"] == [delivery.envelope for delivery in store.take(3)]


@pytest.mark.parametrize(("how", "failed"), [("undelivered", -1), ("released", 0), ("nacked", 1)])
def test_counts_as_it_says(store, how, failed):
    """Each kind of return has its own count: undelivered, returned in order, or failed."""
    store.publish(message())
    store.release(how, *store.take())
    assert failed == store.take()[0].failed
    assert 1 == store.ledger(how)


def test_an_orderly_return_keeps_the_count(store):
    """An orderly return keeps the count of earlier failures."""
    store.publish(message())
    for how in ("nacked", "nacked", "released", "undelivered"):
        store.release(how, *store.take())
    assert 2 == store.take()[0].failed


@pytest.mark.parametrize("how", HOW)
def test_a_late_return_is_refused(store, other, how):
    """A return is refused once another consumer has the message."""
    store.publish(message())
    (late,) = store.take()
    store.return_ended(late)
    (its,) = other.take()
    assert [late.tag] == store.release(how, late)
    assert {"unacked": 1} == store.places()
    assert [] == other.release("released", its)


@pytest.mark.parametrize("how", HOW)
def test_a_second_return_is_refused(store, how):
    """A second return of a message is refused and does not count."""
    store.publish(message())
    (held,) = store.take()
    store.release(how, held)
    assert [held.tag] == store.release(how, held)
    assert {"ready": 1} == store.places()
    assert 1 == store.ledger(how)


@pytest.mark.parametrize("place", ["acked", "dead", "unknown"])
def test_what_is_not_held_is_refused(store, place):
    """A return of an acked, dead or unknown message is refused."""
    store.publish(message())
    (held,) = store.take()
    if place == "acked":
        store.ack(held.tag)
    elif place == "dead":
        store.dead_letter(held)
    else:
        held = Lease("05" + "0" * 28, held.token)
    before = store.places()
    assert [held.tag] == store.release("nacked", held)
    assert before == store.places()


def test_another_token_is_refused(store):
    """A return with another lease's token is refused, even for the same consumer."""
    store.publish(message())
    (first,) = store.take()
    store.release("released", first)
    (second,) = store.take()
    assert [first.tag] == store.release("nacked", first)
    assert [] == store.release("nacked", second)


def test_one_refused_does_not_keep_the_others(store):
    """A refused return does not affect the others of the same call."""
    store.publish(*(message() for _ in range(4)))
    taken = store.take(4)
    store.ack(taken[0].tag)
    store.release("released", taken[2])
    assert [taken[0].tag, taken[2].tag] == store.release("nacked", *taken)
    assert {"ready": 3} == store.places()


def test_hundreds_go_back(store):
    """Hundreds of messages are returned in order over several steps, and all refused are named."""
    store.publish(*(message(envelope=b"%d" % n) for n in range(450)))
    taken = store.take(450)
    store.ack(taken[0].tag, taken[449].tag)
    assert [taken[0].tag, taken[449].tag] == store.release("released", *taken)
    expected = [delivery.envelope for delivery in taken[1:449]]
    assert expected == [delivery.envelope for delivery in store.take(448)]


def test_nothing_to_give_back(store):
    """A return of no messages returns an empty list."""
    store.publish(message())
    assert [] == store.release("nacked")
    assert {"ready": 1} == store.places()


@pytest.mark.parametrize("how", HOW)
def test_an_older_token_beside_the_newest_one(store, how):
    """A call that names an older and the newest lease of a message refuses only the older one."""
    store.publish(message())
    (older,) = store.take()
    store.release("undelivered", older)
    (newest,) = store.take()
    assert [older.tag] == store.release(how, older, newest)
    assert {"ready": 1} == store.places()
    (held,) = store.take()
    assert [held.tag] == store.release(how, held, held)
