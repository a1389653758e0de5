import pytest

from tests.contract.steps import message
from tests.support.waiting import wait_until

WAIT = (0.2, 0.5)
TAKEN_WITHIN_MS = 2_000
"""A publish and its reserve take less than this, even on a busy machine."""


def test_a_requeued_message_waits(connect):
    """A requeued message is delayed, and becomes ready when its back-off is over, not sooner."""
    store = connect(redelivery_backoff=WAIT)
    store.publish(message())
    store.release("nacked", *store.take())
    assert {"delayed": 1} == store.places()
    reservation = store.reserve()
    assert [] == reservation.deliveries
    assert 0 < reservation.next_due_ms <= 200
    store.pass_time(200)
    assert 1 == store.take()[0].failed


def test_a_message_whose_lease_ended_waits(connect):
    """The pass delays a message whose lease ended, and wakes consumers that wait for longer."""
    store = connect(redelivery_backoff=WAIT)
    store.publish(message())
    held = store.take()
    store.reserve()  # finds nothing; no notification is pending
    store.return_ended(*held)
    assert {"delayed": 1} == store.places()
    store.store.notifier.listen(["q"], 5.0)
    store.wait_to_the_end()


def test_it_doubles_up_to_its_most(connect):
    """The back-off begins at its minimum, doubles, and stays at its maximum."""
    store = connect(redelivery_backoff=(0.05, 0.15), delivery_limit=None)
    store.publish(message())
    for expected in (50, 100, 150, 150):
        wait_until(lambda: store.promote() and store.places() == {"ready": 1}, interval_s=0.005)
        taken = store.take()
        before = store.store.now_ms()
        store.release("nacked", *taken)
        left = store.promote().next_due_ms
        # The measurement and the start of the back-off are both within this time.
        within = store.store.now_ms() - before + 1
        assert expected - within <= left <= expected, (expected, left, within)


def test_what_had_company_waits_as_well(connect):
    """All messages that a dead consumer held together are delayed.

    It is unknown which of them was the cause. A dead letter is not delayed.
    """
    store = connect(redelivery_backoff=WAIT, delivery_limit=2)
    store.publish(message(), message())
    store.return_ended(*store.take(2))
    assert {"delayed": 2} == store.places()
    store.pass_time(200)
    (dead,) = store.return_ended(*store.take()).dead
    assert 2 == dead.failed
    assert {"ready": 1, "dead": 1} == store.places()


def test_an_orderly_return_does_not_wait(connect):
    """An orderly return has no back-off, as nothing failed."""
    store = connect(redelivery_backoff=WAIT)
    store.publish(message())
    store.release("released", *store.take())
    assert {"ready": 1} == store.places()


@pytest.mark.slow
def test_a_ttl_goes_on_while_it_waits(connect):
    """A message whose TTL ends during its back-off expires and is not delivered."""
    store = connect(redelivery_backoff=(60.0, 60.0))
    store.publish(message(ttl_ms=TAKEN_WITHIN_MS))
    store.release("nacked", *store.take())
    store.pass_time(TAKEN_WITHIN_MS)
    assert [] == store.reserve().deliveries
    assert {} == store.places()
    assert 1 == store.ledger("expired")


def test_the_limit_goes_before_the_wait(connect):
    """A message at its delivery limit becomes a dead letter at once, without a back-off."""
    store = connect(redelivery_backoff=WAIT, delivery_limit=1)
    store.publish(message())
    assert 1 == len(store.give_back("nacked", *store.take()).dead)
