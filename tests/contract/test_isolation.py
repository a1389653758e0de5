"""The last delivery before the limit goes to a consumer that holds no other message.

Only this message is judged if the consumer dies.
"""

import pytest

from reliq.values.values import ALONE, BUSY, HOLDING, IDLE
from tests.contract.steps import message
from tests.contract.test_poison_candidates import innocents, poison_candidates, reserved
from tests.support.waiting import wait_until


def candidate(store):
    """Publish a message with one failure less than the limit of 3; return its tag."""
    return poison_candidates(store, 1)[0]


@pytest.fixture
def store(connect):
    """Return a consumer of a broker whose limit is 3."""
    return connect(delivery_limit=3)


@pytest.fixture
def other(connect):
    """Return another consumer."""
    return connect("s/2", delivery_limit=3)


@pytest.mark.slow
def test_nothing_else_is_given_until_it_is_done(store, other):
    """A consumer with an isolated message gets no other one; other consumers get the rest."""
    last = candidate(store)
    rest = innocents(store, 2)
    reservation = store.reserve(9)
    assert ([last], True) == ([d.tag for d in reservation.deliveries], reservation.isolated)
    assert [] == reserved(store)
    assert rest == reserved(other)
    store.ack(last)
    later = innocents(store, 1)
    assert later == reserved(store)


@pytest.mark.parametrize("occupancy", [HOLDING, IDLE])
def test_who_is_not_alone_claims_it(store, occupancy):
    """A consumer that holds messages claims the candidate, and gets no more messages then.

    It takes the candidate when it holds no other message.
    """
    last = candidate(store)
    (beside,) = innocents(store, 1)
    reservation = store.reserve(9, occupancy=occupancy)
    assert ([beside], True) == ([d.tag for d in reservation.deliveries], reservation.claimed)
    innocents(store, 1)
    assert store.reserve(9, occupancy=occupancy).claimed
    store.ack(beside)
    assert [last] == reserved(store)


def test_one_consumer_claims_it(store, other):
    """One consumer claims the candidate; others continue, and one without messages takes it."""
    last = candidate(store)
    assert store.reserve(9, occupancy=HOLDING).claimed
    (fresh,) = innocents(store, 1)
    reservation = other.reserve(9, occupancy=HOLDING)
    assert ([fresh], False) == ([d.tag for d in reservation.deliveries], reservation.claimed)
    other.ack(fresh)
    assert other.reserve(9, occupancy=IDLE).claimed
    assert [last] == reserved(other)


def test_a_claim_lapses(store, other):
    """A claim expires if its consumer does not reserve again."""
    candidate(store)
    assert store.reserve(9, occupancy=HOLDING, lease_ms=100).claimed
    wait_until(lambda: other.reserve(9, occupancy=HOLDING).claimed, timeout_s=5, interval_s=0.01)


def test_who_has_waited_in_vain_goes_on(store, other):
    """A consumer that has waited in vain skips its claim, and another consumer has its turn."""
    last = candidate(store)
    assert store.reserve(9, occupancy=HOLDING).claimed
    (fresh,) = innocents(store, 1)
    reservation = store.reserve(9, occupancy=BUSY)
    assert ([fresh], False) == ([d.tag for d in reservation.deliveries], reservation.claimed)
    assert store.reserve(9, occupancy=HOLDING, lease_ms=100).claimed
    assert not store.reserve(9, occupancy=BUSY).claimed
    wait_until(lambda: other.reserve(9, occupancy=HOLDING).claimed, timeout_s=5, interval_s=0.01)
    assert [last] == reserved(other)


def test_a_claim_goes_with_its_message(store, other):
    """When another consumer takes the candidate, the claimant continues normally."""
    last = candidate(store)
    assert store.reserve(9, occupancy=HOLDING).claimed
    assert [last] == reserved(other)
    fresh = innocents(store, 1)
    assert fresh == [d.tag for d in store.reserve(9, occupancy=HOLDING).deliveries]


def test_a_death_alone_is_the_end(store):
    """A death during an isolated delivery dead-letters the message at its limit."""
    last = candidate(store)
    (dead,) = store.return_ended(*store.take()).dead
    assert (last, 3) == (dead.tag, dead.failed)


def test_deaths_in_company_end_nothing(connect):
    """Deaths in company raise the count of a message to its limit less one at most."""
    lax, strict = connect("s/1", delivery_limit=9), connect("s/2", delivery_limit=3)
    sent = [message(), message()]
    lax.publish(*sent)
    for expected in (1, 2, 2):
        lax.end(*lax.take(2) if expected == 1 else [lax.take()[0]])
        report = strict.restore(force=True)
        assert [] == report.dead
    assert {"ready": 2} == strict.places()


def test_the_last_delivery_after_the_limit_was_lowered(connect):
    """A message above a lowered limit gets one more delivery, alone."""
    lax, strict = connect("s/1", delivery_limit=9), connect("s/2", delivery_limit=3)
    (tag,) = poison_candidates(lax, 1, failures=5)
    lax.end(*lax.take())
    assert [] == strict.restore(force=True).dead
    (held,) = strict.take()
    assert 5 == held.failed
    (dead,) = strict.return_ended(held).dead
    assert (tag, 6) == (dead.tag, dead.failed)


@pytest.mark.parametrize("how", ["released", "undelivered"])
def test_an_orderly_return_of_it_is_not_counted(store, how):
    """An orderly return of the candidate does not count, and its next delivery is isolated too."""
    last = candidate(store)
    assert ([], []) == store.give_back(how, *store.take())
    reservation = store.reserve(9, occupancy=ALONE)
    assert ([last], True) == ([d.tag for d in reservation.deliveries], reservation.isolated)


def test_a_requeue_names_its_message(store):
    """A requeue of the candidate counts, as the application itself reports the failure."""
    last = candidate(store)
    (dead,) = store.give_back("nacked", *store.take()).dead
    assert last == dead.tag


def test_without_acks_there_is_nothing_to_judge(store):
    """A consumer without acks gets the candidate like any other message."""
    last = candidate(store)
    (fresh,) = innocents(store, 1)
    reservation = store.reserve(9, no_ack=True, occupancy=HOLDING)
    assert [last, fresh] == [d.tag for d in reservation.deliveries]
    assert (False, False) == (reservation.claimed, reservation.isolated)


def test_with_a_limit_of_one_each_is_delivered_alone(connect):
    """With a limit of one, each message is delivered alone."""
    store = connect(delivery_limit=1)
    first, second = innocents(store, 2)
    assert [first] == reserved(store)
    assert [] == reserved(store)
    store.ack(first)
    (held,) = store.take()
    assert second == held.tag
    assert [second] == [dead.tag for dead in store.return_ended(held).dead]
