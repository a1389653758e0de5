from reliq.store.values import Lease
from tests.contract.steps import message
from tests.support.waiting import wait_until


def test_a_renewed_lease_does_not_run_out(store):
    """What is renewed stays; what is not renewed beside it goes back."""
    store.publish(message(), message())
    kept, left = store.take(2, lease_ms=200)
    assert [] == store.renew(kept)
    wait_until(lambda: store.restore(lease_ms=200).by_consumer, interval_s=0.02)
    assert {"ready": 1, "unacked": 1} == store.places()
    assert [] == store.renew(kept)
    assert [left.tag] == store.renew(left)


def test_a_renewed_lease_runs_out_later(store):
    """Renewing gives so many ms from now, not for ever."""
    store.publish(message())
    (held,) = store.take()
    store.renew(held, lease_ms=1)
    wait_until(lambda: store.restore(lease_ms=1, force=True).by_consumer, interval_s=0.002)
    assert {"ready": 1} == store.places()


def test_renewing_uses_the_lease_of_the_queue(store):
    """x-visibility-timeout goes before what the consumer asks for here too."""
    store.declare(lease="100")
    store.publish(message())
    store.renew(*store.take())
    wait_until(lambda: store.restore().by_consumer, interval_s=0.02)
    assert {"ready": 1} == store.places()


def test_a_lost_lease_is_reported(store, other):
    """Given back, taken by another, acked, dead, unknown: not renewed, and named."""
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
    """Acked, or unknown: gone. Waiting, held by another, dead: it is there, and may run again."""
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
    """Neither does it extend it, nor can it end it."""
    store.publish(message())
    (late,) = store.take()
    store.return_ended(late)
    (its,) = other.take()
    assert [late.tag] == store.renew(late)
    assert [late.tag] == store.end(late)
    assert {} == store.restore(force=True).by_consumer
    assert [] == other.renew(its)


def test_a_lease_that_is_ended_is_restored_by_the_next_pass(store):
    """0 ms: the message waits for no deadline any more."""
    store.publish(message(), message())
    ended, _ = store.take(2)
    assert [] == store.end(ended)
    assert {"unacked": 2} == store.places()
    assert {"s/1": 1} == store.restore(force=True).by_consumer
    assert {"ready": 1, "unacked": 1} == store.places()


def test_a_lease_that_was_ended_can_be_renewed_until_the_pass(store):
    """It is still the holder's: one who was taken for dead and lives keeps it."""
    store.publish(message())
    (held,) = store.take()
    store.end(held)
    assert [] == store.renew(held)
    assert {} == store.restore(force=True).by_consumer
    assert {"unacked": 1} == store.places()


def test_hundreds_are_renewed_and_all_lost_ones_reported(store):
    """However many, in however many answers: none is forgotten."""
    store.publish(*(message() for _ in range(450)))
    taken = store.take(450)
    gone = [taken[0], taken[200], taken[449]]
    store.ack(*(delivery.tag for delivery in gone))
    assert [delivery.tag for delivery in gone] == store.renew(*taken)
    assert {"unacked": 447} == store.places()


def test_nothing_is_renewed_into_being(store):
    """A renewal creates neither lease nor queue."""
    assert ["tag"] == store.renew(Lease("tag", "1"))
    assert store.store.reads.status("q") is None
    assert {} == store.restore(force=True).by_consumer
