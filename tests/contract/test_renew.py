from reliq.values.values import Lease
from tests.contract.steps import message
from tests.support.waiting import wait_until


def test_a_renewed_lease_does_not_run_out(store):
    """A renewed lease is kept, while one that is not renewed ends."""
    store.publish(message(), message())
    kept, left = store.take(2, lease_ms=200)
    assert [] == store.renew(kept)
    wait_until(lambda: store.restore(lease_ms=200).by_consumer, interval_s=0.02)
    assert {"ready": 1, "unacked": 1} == store.places()
    assert [] == store.renew(kept)
    assert [left.tag] == store.renew(left)


def test_a_renewed_lease_runs_out_later(store):
    """A renewal lasts for the given ms from now."""
    store.publish(message())
    (held,) = store.take()
    store.renew(held, lease_ms=1)
    wait_until(lambda: store.restore(lease_ms=1, force=True).by_consumer, interval_s=0.002)
    assert {"ready": 1} == store.places()


def test_renewing_uses_the_lease_of_the_queue(store):
    """A renewal uses the queue's x-visibility-timeout instead of the consumer's length."""
    store.declare(lease="100")
    store.publish(message())
    store.renew(*store.take())
    wait_until(lambda: store.restore().by_consumer, interval_s=0.02)
    assert {"ready": 1} == store.places()


def test_a_lost_lease_is_reported(store, other):
    """Lost leases are not renewed and are named.

    Their messages may be ready, held by another consumer, acked, dead or unknown.
    """
    store.publish(*(message() for _ in range(5)))
    taken, back, acked, dead, held = store.take(5)
    store.return_ended(taken)
    other.take()
    store.release("released", back)
    store.ack(acked.tag)
    store.dead_letter(dead)
    unknown = Lease("05" + "0" * 28, "1")
    lost = store.renew(taken, back, acked, dead, held, unknown)
    assert [taken.tag, back.tag, acked.tag, dead.tag, unknown.tag] == lost
    assert {"ready": 1, "unacked": 2, "dead": 1} == store.places()


def test_a_lost_message_that_is_gone_is_told_from_one_that_is_elsewhere(store, other):
    """A lost lease's message is reported as gone if it was acked or is unknown.

    A message that is ready, held by another consumer or dead still exists and may run again.
    """
    store.publish(*(message() for _ in range(5)))
    taken, back, acked, dead, held = store.take(5)
    store.return_ended(taken)
    other.take()
    store.release("released", back)
    store.ack(acked.tag)
    store.dead_letter(dead)
    unknown = Lease("05" + "0" * 28, "1")
    gone = store.renew_gone(taken, back, acked, dead, held, unknown)
    assert [acked.tag, unknown.tag] == gone


def test_a_late_renewal_does_not_touch_the_lease_of_another(store, other):
    """A late renewal neither extends nor ends the lease of another consumer."""
    store.publish(message())
    (late,) = store.take()
    store.return_ended(late)
    (its,) = other.take()
    assert [late.tag] == store.renew(late)
    assert [late.tag] == store.end(late)
    assert {} == store.restore(force=True).by_consumer
    assert [] == other.renew(its)


def test_a_lease_that_is_ended_is_restored_by_the_next_pass(store):
    """The message of an ended lease is returned by the next pass, whatever its deadline."""
    store.publish(message(), message())
    ended, _ = store.take(2)
    assert [] == store.end(ended)
    assert {"unacked": 2} == store.places()
    assert {"s/1": 1} == store.restore(force=True).by_consumer
    assert {"ready": 1, "unacked": 1} == store.places()


def test_a_lease_that_was_ended_can_be_renewed_until_the_pass(store):
    """An ended lease can be renewed until the next pass.

    A consumer that lives but was found dead thus keeps its messages.
    """
    store.publish(message())
    (held,) = store.take()
    store.end(held)
    assert [] == store.renew(held)
    assert {} == store.restore(force=True).by_consumer
    assert {"unacked": 1} == store.places()


def test_hundreds_are_renewed_and_all_lost_ones_reported(store):
    """Hundreds of leases are renewed over several replies, and all lost ones are named."""
    store.publish(*(message() for _ in range(450)))
    taken = store.take(450)
    gone = [taken[0], taken[200], taken[449]]
    store.ack(*(delivery.tag for delivery in gone))
    assert [delivery.tag for delivery in gone] == store.renew(*taken)
    assert {"unacked": 447} == store.places()


def test_nothing_is_renewed_into_being(store):
    """A renewal creates neither a lease nor a queue."""
    assert ["tag"] == store.renew(Lease("tag", "1"))
    assert store.store.reads.status("q") is None
    assert {} == store.restore(force=True).by_consumer
