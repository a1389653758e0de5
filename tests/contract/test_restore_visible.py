import pytest

from tests.contract.steps import LONG_MS, message, tags
from tests.support.waiting import wait_until

AGES_MS = 100_000_000
"""A lease that is longer than the uptime of any test's server."""


# -- returned messages


@pytest.mark.slow
def test_a_message_whose_lease_ran_out_returns(store):
    """A message whose lease ended is ready and counts as failed; the report names its holder."""
    store.publish(message())
    store.take(lease_ms=1)
    store.pass_time(2)
    restored = store.restore(lease_ms=1)
    assert (True, False, 0, {"s/1": 1}, []) == (
        restored.granted,
        restored.more,
        restored.unacked,
        restored.by_consumer,
        restored.dead,
    )
    assert {"ready": 1} == store.places()
    assert 1 == store.ledger("restored")
    assert 1 == store.take()[0].failed


def test_a_lease_that_still_runs_is_left_alone(store):
    """A pass returns only messages whose lease has ended, and counts the held ones."""
    store.publish(message(), message(), message())
    store.take(2)
    store.take(lease_ms=1)
    store.pass_time(2)
    restored = store.restore(lease_ms=1)
    assert ({"s/1": 1}, 2) == (restored.by_consumer, restored.unacked)
    assert {"ready": 1, "unacked": 2} == store.places()


def test_it_is_said_whose_leases_ended(store, other):
    """A pass reports the ended leases by consumer, whichever consumer makes it."""
    store.publish(*(message() for _ in range(5)))
    ended = [*store.take(2), *other.take(3)]
    assert {"s/1": 2, "s/2": 3} == other.return_ended(*ended).by_consumer


def test_goes_back_to_its_own_place(store):
    """A restored message is delivered by its priority, before those published after it."""
    store.publish(message(rank=9, envelope=b"last"), message(rank=1, envelope=b"first"))
    store.publish(message(rank=5, envelope=b"middle"))
    store.return_ended(*store.take(3))
    store.publish(message(rank=5, envelope=b"after"))
    expected = [b"first", b"middle", b"after", b"last"]
    assert expected == [delivery.envelope for delivery in store.take(4)]


def test_a_message_that_was_acked_does_not_return(store):
    """A pass does not return an acked message."""
    store.publish(message())
    (held,) = store.take(lease_ms=1)
    store.pass_time(2)
    store.ack(held.tag)
    assert {} == store.restore(lease_ms=1).by_consumer
    assert {} == store.places()


def test_a_lease_is_gone_once_its_message_is_restored(store):
    """A late holder of a restored message cannot renew, return or dead-letter it, only ack it."""
    store.publish(message())
    (late,) = store.take()
    store.return_ended(late)
    assert [late.tag] == store.renew(late)
    assert [late.tag] == store.release("released", late)
    assert [late.tag] == store.dead_letter(late)
    assert {"ready": 1} == store.places()
    assert 1 == store.ack(late.tag)


def test_hundreds_return_in_parts_oldest_first(store):
    """A step of a pass returns some hundred messages, the oldest first; `more` requests another."""
    store.publish(*(message() for _ in range(460)))
    ran_out, ended = store.take(450, lease_ms=1), store.take(10)
    store.end(*ended)
    store.pass_time(2)
    first = store.restore(lease_ms=1)
    assert first.more
    left = {lease.tag for lease in store.store.leases_of("q", "s/1")}
    assert first.unacked == len(left) > 0
    assert not left & {delivery.tag for delivery in ended}
    assert {delivery.tag for delivery in ran_out[-9:]} <= left
    while store.restore(lease_ms=1).more:
        pass
    assert {"ready": 460} == store.places()
    assert 460 == store.ledger("restored")
    expected = [delivery.tag for delivery in (*ran_out, *ended)]
    assert expected == [delivery.tag for delivery in store.take(460)]


def test_more_says_to_go_on(store):
    """A pass over hundreds of messages makes exactly as many steps as `more` requests."""
    store.publish(*(message() for _ in range(450)))
    store.end(*store.take(450))
    steps = [store.restore(force=True)]
    while steps[-1].more:
        steps.append(store.restore(force=True))
    assert 450 == sum(step.by_consumer["s/1"] for step in steps)
    assert [True] * (len(steps) - 1) == [step.unacked > 0 for step in steps[:-1]]
    assert {"ready": 450} == store.places()


def test_the_consumers_of_the_queue_are_named(store):
    """A pass returns the consumers of the queue, so that dead ones can be found."""
    store.publish(message())
    store.store.attach("q", "host:1", 1)
    store.store.attach("q", "host:2", 3)
    assert ["host:1", "host:2"] == sorted(store.restore().consumers)


def test_a_queue_that_is_not_there(store):
    """A pass over a missing queue restores nothing and creates no queue."""
    restored = store.restore()
    assert (0, {}, []) == (restored.unacked, restored.by_consumer, restored.consumers)
    assert store.store.reads.status("q") is None


# -- one pass per interval


def test_one_pass_for_an_interval(connect):
    """One of several consumers is granted the pass; the others get the time until the next."""
    stores = [connect(f"s/{n}", restore_interval=30.0) for n in range(4)]
    first, *rest = [store.restore() for store in stores]
    assert first.granted
    assert [False] * 3 == [answer.granted for answer in rest]
    assert all(0 < answer.retry_ms <= 30_000 for answer in rest)


def test_who_is_refused_returns_nothing(connect):
    """A refused pass returns no messages, which are left to the holder of the pass."""
    holder, refused = (connect(name, restore_interval=30.0) for name in ("s/1", "s/2"))
    holder.publish(message())
    holder.restore()
    holder.end(*holder.take())
    restored = refused.restore()
    assert (False, {}) == (restored.granted, restored.by_consumer)
    assert {"unacked": 1} == holder.places()
    assert {"s/1": 1} == holder.restore().by_consumer


def test_the_holder_goes_on(connect):
    """The holder of a pass makes as many steps as necessary."""
    holder, other = (connect(name, restore_interval=30.0) for name in ("s/1", "s/2"))
    assert [True] * 3 == [holder.restore().granted for _ in range(3)]
    assert not other.restore().granted


def test_the_pass_lapses_by_itself(connect):
    """A pass without further steps lapses, and another consumer is granted one."""
    connect("s/1", restore_interval=0.05).restore()
    other = connect("s/2", restore_interval=0.05)
    answers = []
    wait_until(lambda: answers.append(other.restore()) or answers[-1].granted, interval_s=0.01)
    assert all(0 <= answer.retry_ms <= 50 for answer in answers)


def test_in_a_hurry_nobody_waits_their_turn(connect):
    """A forced pass returns messages at once, without taking the pass from its holder."""
    holder, other = (connect(name, restore_interval=30.0) for name in ("s/1", "s/2"))
    holder.publish(message())
    holder.restore()
    restored = other.return_ended(*other.take())
    assert (True, {"s/2": 1}) == (restored.granted, restored.by_consumer)
    assert not other.restore().granted


def test_each_queue_has_its_own_pass(connect):
    """The passes of different queues are independent."""
    first, other = (connect(name, restore_interval=30.0) for name in ("s/1", "s/2"))
    assert first.restore(queue="q").granted
    assert other.restore(queue="r").granted


# -- after an outage of the server


def test_a_young_server_restores_nothing(store):
    """No lease ends while the server is up for less than one lease: no consumer could renew it."""
    store.publish(message())
    store.take(lease_ms=1)
    store.pass_time(2)
    assert {} == store.restore(lease_ms=AGES_MS, force=True).by_consumer
    assert {"unacked": 1} == store.places()
    assert {"s/1": 1} == store.restore(lease_ms=1, force=True).by_consumer


def test_a_young_server_restores_ended_leases_at_once(store):
    """An ended lease is restored at once even by a young server, as it has no holder."""
    store.publish(message(), message())
    ended, _ = store.take(2, lease_ms=AGES_MS)
    store.end(ended)
    assert {"s/1": 1} == store.restore(lease_ms=AGES_MS).by_consumer
    assert {"ready": 1, "unacked": 1} == store.places()


def test_after_a_time_without_a_pass_there_is_time_to_renew(connect):
    """After a time without passes, ended leases get half a lease for a renewal.

    The server may have been suspended.
    """
    store = connect(restore_interval=0.05)
    store.publish(message(), message())
    store.restore(lease_ms=600)
    kept, left = store.take(2, lease_ms=100)
    store.pass_time(400)
    assert {} == store.restore(lease_ms=600).by_consumer
    assert {} == store.restore(lease_ms=600, force=True).by_consumer
    assert [] == store.renew(kept)
    wait_until(lambda: store.restore(lease_ms=600).by_consumer == {"s/1": 1}, interval_s=0.02)
    assert {"ready": 1, "unacked": 1} == store.places()
    assert [left.tag] == store.renew(left)


def test_however_seldom_a_pass_is_made_what_nobody_renews_comes_back(connect):
    """A lease that is not renewed ends at the second pass, however rare passes are."""
    store = connect(restore_interval=0.05)
    store.publish(message())
    store.restore(lease_ms=600)
    store.take(lease_ms=100)
    store.pass_time(450)
    assert {} == store.restore(lease_ms=600).by_consumer
    store.pass_time(450)
    assert {"s/1": 1} == store.restore(lease_ms=600).by_consumer
    assert {"ready": 1} == store.places()


def test_the_first_pass_gives_time_to_renew_too(connect):
    """The first pass gives time for renewals too, as the server may have been suspended before."""
    store = connect(restore_interval=0.05)
    store.publish(message())
    (kept,) = store.take(lease_ms=1)
    store.pass_time(2)
    assert {} == store.restore(lease_ms=60_000, force=True).by_consumer
    assert {} == store.restore(lease_ms=60_000).by_consumer
    assert [] == store.renew(kept)


# -- at the limit


@pytest.mark.parametrize("limit", [1, 3])
def test_at_the_delivery_limit_a_message_is_given_up_on(connect, limit):
    """A message becomes a dead letter with its reason at the delivery limit."""
    store = connect(delivery_limit=limit)
    sent = message()
    store.publish(sent)
    for _ in range(limit - 1):
        assert [] == store.return_ended(*store.take()).dead
    restored = store.return_ended(*store.take())
    assert ([sent.tag], {"s/1": 1}) == (tags(restored.dead), restored.by_consumer)
    assert {"dead": 1} == store.places()
    (dead_letter,) = store.store.reads.dead_letters("q", 9)
    assert (sent.tag, "delivery_limit", limit, "s/1") == (
        dead_letter.tag,
        dead_letter.reason,
        dead_letter.count,
        dead_letter.consumer,
    )
    assert [] == store.reserve().deliveries


def test_orderly_returns_do_not_count_towards_the_limit(connect):
    """Orderly returns do not count towards the delivery limit."""
    store = connect(delivery_limit=2)
    store.publish(message())
    for _ in range(5):
        store.release("released", *store.take())
        store.release("undelivered", *store.take())
    assert [] == store.return_ended(*store.take()).dead
    assert {"ready": 1} == store.places()


def test_counted_returns_count_towards_the_limit(connect):
    """Requeues count towards the delivery limit of a pass."""
    store = connect(delivery_limit=2)
    store.publish(message())
    store.release("nacked", *store.take())
    assert 1 == len(store.return_ended(*store.take()).dead)


def test_without_a_limit_no_message_is_given_up_on(connect):
    """With delivery_limit None, a message is returned any number of times."""
    store = connect(delivery_limit=None)
    store.publish(message())
    for failures in range(30):
        (held,) = store.take()
        assert (failures or -1) == held.failed
        assert [] == store.return_ended(held).dead
    assert {"ready": 1} == store.places()


def test_the_limit_takes_only_those_that_reached_it(connect):
    """A pass dead-letters the messages at the limit and returns the others."""
    store, other = connect(delivery_limit=2), connect("s/2", delivery_limit=2)
    store.publish(message(envelope=b"old"))
    store.release("nacked", *store.take())
    store.publish(message(envelope=b"new"))
    (old,), (new,) = store.take(), other.take()
    assert [old.tag] == tags(store.return_ended(old, new).dead)
    assert {"ready": 1, "dead": 1} == store.places()
    assert new.tag == store.take()[0].tag


# -- the cap of the dead letters


def test_the_pass_keeps_the_cap_of_the_dead_letters(connect):
    """A pass drops the oldest dead letters above dead_letter_max, and counts them."""
    store = connect(delivery_limit=1, dead_letter_max=3)
    store.publish(*(message() for _ in range(5)))
    died = []
    for _ in range(5):
        died += tags(store.return_ended(*store.take()).dead)
    assert {"dead": 3} == store.places()
    assert 2 == store.ledger("dropped")
    assert died[2:] == [dead_letter.tag for dead_letter in store.store.reads.dead_letters("q", 9)]


def test_the_pass_drops_hundreds_above_the_cap(connect):
    """A pass drops hundreds of dead letters above the cap in as many steps as necessary."""
    store = connect(dead_letter_max=10_000)
    store.publish(*(message() for _ in range(450)))
    store.dead_letter(*store.take(450))
    assert {"dead": 450} == store.places()
    frugal = connect("s/2", dead_letter_max=7)
    while frugal.restore(force=True).more:
        pass
    assert {"dead": 7} == store.places()
    assert 443 == store.ledger("dropped")


@pytest.mark.slow
def test_dead_letters_are_kept_so_long(connect):
    """Dead letters older than dead_letter_ttl are dropped and counted; younger ones stay."""
    store = connect(dead_letter_ttl=1)
    store.publish(message(), message())
    store.dead_letter(*store.take())
    assert {"ready": 1, "dead": 1} == store.places()
    store.restore(force=True)
    assert {"ready": 1, "dead": 1} == store.places()
    wait_until(
        lambda: store.restore(force=True) and store.ledger("dropped"),
        interval_s=0.05,
    )
    assert {"ready": 1} == store.places()


def test_passes_leave_a_lease_with_time_alone(store):
    """Frequent passes do not end a lease before its time."""
    store.publish(message())
    (held,) = store.take()
    for _ in range(20):
        store.restore(lease_ms=1, force=True)
    assert [] == store.renew(held, lease_ms=LONG_MS)
