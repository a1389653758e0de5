"""The limits of a queue: leases are slots, starts have a rate, early acks keep their slot."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from reliq.errors import ReliqError
from reliq.lua.keys import queue_keys
from tests.contract.steps import LONG_MS, envelopes, message
from tests.contract.test_notifier import notify, silent
from tests.support.waiting import wait_until

SLOW = "1/h"
"""A rate that permits no second start during a test."""


def given(store, n=9, **how):
    """Return the deliveries of one reserve."""
    return store.reserve(n, **how).deliveries


def hush(store):
    """Take the notifications that are pending."""
    while not silent(store):
        pass


@pytest.fixture
def full(store):
    """Return a store that holds the two messages that a queue with two slots gives, of six."""
    store.declare(concurrency="2")
    store.publish(*(message(envelope=b"%d" % n) for n in range(6)))
    store.held = given(store)
    assert [b"0", b"1"] == [held.envelope for held in store.held]
    hush(store)
    return store


def test_a_queue_without_limits_is_not_reported_as_limited(store):
    """A reserve reports whether the queue has limits."""
    store.publish(message())
    assert not store.reserve().limited
    store.declare("r", concurrency="1")
    assert store.reserve(queue="r").limited
    store.declare("s", rate="1/s")
    assert store.reserve(queue="s").limited


def test_gives_as_many_as_there_are_slots(full, other):
    """A reserve at the limit gives nothing, to any consumer, and wakes nobody."""
    for store in (full, other):
        reservation = store.reserve(9)
        assert ([], -1, False) == (
            reservation.deliveries,
            reservation.next_due_ms,
            reservation.left,
        )
    assert silent(full)
    assert {"ready": 4, "unacked": 2} == full.places()


def test_a_slot_left_is_left(store, other):
    """A reserve below the limit reports what is left, and notifies others."""
    store.declare(concurrency="3")
    store.publish(*(message() for _ in range(6)))
    hush(store)
    reservation = store.reserve(2)
    assert reservation.left
    assert "q" == notify(other)
    assert 1 == len(given(other))
    assert silent(store)


ENDS = {
    "ack": lambda store, held: store.ack(held.tag, ""),
    "released": lambda store, held: store.release("released", held),
    "undelivered": lambda store, held: store.release("undelivered", held),
    "nacked": lambda store, held: store.release("nacked", held),
    "nacked for the last time": lambda store, held: (
        store.configure(delivery_limit="1"),
        hush(store),
        store.release("nacked", held),
    ),
    "dead-lettered": lambda store, held: store.dead_letter(held),
    "restored": lambda store, held: store.return_ended(held),
    "begun, acked": lambda store, held: (store.begin_tasks(held), store.ack(held.tag, "")),
    "begun, restored": lambda store, held: (store.begin_tasks(held), store.return_ended(held)),
    "begun, released": lambda store, held: (
        store.begin_tasks(held),
        store.release("released", held),
    ),
    "released as begun": lambda store, held: store.release("begun", held),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_each_end_of_a_lease_frees_its_slot_and_notifies(full, other, end):
    """However a lease ends, one waiting consumer is notified, and gets one message."""
    end(full, full.held[0])
    assert "q" == notify(full)
    assert 1 == len(given(other))
    assert [] == given(other)
    assert silent(full)


def test_an_ended_lease_is_a_slot_until_the_pass(full):
    """A lease that has expired occupies its slot until a pass returns the message."""
    full.end(*full.held)
    assert [] == given(full)
    full.restore(force=True)
    assert 2 == len(given(full))


def test_a_late_ack_frees_no_slot_of_another(full, other):
    """An ack of a message that was delivered again ends the newer lease, and only that."""
    full.return_ended(full.held[0])
    (again,) = given(other)
    assert full.held[0].tag == again.tag
    full.ack(full.held[0].tag, "")
    assert 1 == len(given(full))
    assert [] == given(other)


def test_a_lower_limit_ends_nothing(full):
    """Below the number of leases, a new limit gives nothing until enough have ended."""
    full.configure(concurrency="1")
    assert [] == given(full)
    assert {"ready": 4, "unacked": 2} == full.places()
    full.ack(full.held[0].tag, "")
    assert [] == given(full)
    full.ack(full.held[1].tag, "")
    assert 1 == len(given(full))


@pytest.mark.parametrize(("limit", "more"), [("5", 3), (None, 4)])
def test_a_higher_limit_applies_at_once(full, other, limit, more):
    """A raised or removed limit notifies a waiting consumer."""
    full.configure(concurrency=limit)
    assert "q" == notify(full)
    assert more == len(given(other))


def test_concurrent_reserves_keep_to_the_limit(connect):
    """Four consumers that reserve and ack at once never hold more than the limit, nor less."""
    first = connect("s/9")
    first.declare(concurrency="3")
    first.publish(*(message() for _ in range(200)))
    stores = [connect(f"s/{n}").store for n in range(4)]
    lock, held, seen, done = threading.Lock(), set(), [], []

    def consume(store):
        while len(done) < 200:
            taken = store.reserve("q", 2, LONG_MS, False).deliveries
            with lock:
                held.update(item.tag for item in taken)
                seen.append(len(held))
                done.extend(taken)
            for item in taken:
                with lock:
                    held.discard(item.tag)
                results = []
                store.post_ack("q", [item.tag, ""], results.append)
                store.wait_for_replies()

    threads = [threading.Thread(target=consume, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 200 == len(done)
    assert 3 >= max(seen)
    assert {} == first.places()


# -- the rate


def test_a_rate_gives_its_burst_at_once(store):
    """A rate gives its burst, and then reports the time until the next start."""
    store.declare(rate="1/m burst 3")
    store.publish(*(message(envelope=b"%d" % n) for n in range(5)))
    hush(store)
    reservation = store.reserve(9)
    assert [b"0", b"1", b"2"] == envelopes(reservation)
    assert not reservation.left
    assert 59_000 < reservation.next_due_ms <= 60_000
    again = store.reserve(9)
    assert ([], False) == (again.deliveries, again.left)
    assert 50_000 < again.next_due_ms <= reservation.next_due_ms
    assert silent(store)


@pytest.mark.parametrize(
    ("rate", "burst"), [("50/s", 5), ("9/s", 1), ("600/m", 1), ("6000/m", 10), ("1/h", 1)]
)
def test_the_default_burst_is_a_tenth_of_a_second(store, rate, burst):
    """Without a burst, a rate gives at once what it gives in 100 ms, and at least one."""
    store.declare(rate=rate)
    store.publish(*(message() for _ in range(20)))
    assert burst == len(given(store, 20))


def test_the_next_start_is_possible_when_it_was_promised(store):
    """After the reported time, exactly one more message is given."""
    store.declare(rate="20/s burst 2")
    store.publish(*(message() for _ in range(5)))
    promised = store.reserve(9).next_due_ms
    assert 0 < promised <= 50
    store.pass_time(promised)
    assert 1 <= len(given(store)) <= 3


def test_the_next_start_and_the_next_due_message(store):
    """The sooner of the two is reported."""
    store.declare(rate="1/m")
    store.publish(message(), message(), message(delay_ms=5000))
    assert 4000 < store.reserve(9).next_due_ms <= 5000


def test_a_rate_without_ready_messages_reports_nothing(store):
    """If nothing is ready, the rate gives no time to wait for."""
    store.declare(rate=SLOW)
    store.publish(message())
    reservation = store.reserve(9)
    assert (1, -1) == (len(reservation.deliveries), reservation.next_due_ms)
    assert -1 == store.reserve(9).next_due_ms


def test_a_message_handed_back_unstarted_gives_its_token_back(store):
    """An undelivered message may start again at once, and no other beside it."""
    store.declare(rate=f"{SLOW} burst 2")
    store.publish(message(), message(), message())
    first, second = given(store)
    store.release("undelivered", second, first)
    assert [first.tag, second.tag] == [item.tag for item in given(store)]
    assert [] == given(store)


@pytest.mark.parametrize("how", ["released", "nacked", "begun"])
def test_a_started_message_gives_no_token_back(store, how):
    """A message that was started has used its token, however it returns."""
    store.declare(rate=SLOW)
    store.publish(message(), message())
    (held,) = given(store)
    store.release(how, held)
    assert [] == given(store)


def test_a_begun_message_gives_no_token_back(store):
    """A message whose task has begun cannot be handed back unstarted."""
    store.declare(rate=SLOW)
    store.publish(message(), message())
    (held,) = given(store)
    store.begin_tasks(held)
    store.release("undelivered", held)
    assert {"ready": 1} == store.places()
    assert [] == given(store)


def test_a_token_is_given_back_once(store):
    """A lease that has ended gives no token back, so no message starts twice for one token."""
    store.declare(rate=f"{SLOW} burst 2")
    store.publish(*(message() for _ in range(4)))
    first, _ = given(store)
    assert [] == store.release("undelivered", first)
    assert [first.tag] == store.release("undelivered", first)
    assert 1 == len(given(store))


def test_a_clock_that_was_set_back(store, engine):
    """Starts in the future, before the clock was set back, close the queue for one interval."""
    store.declare(rate="100/s burst 2")
    store.publish(*(message() for _ in range(5)))
    assert 2 == len(given(store))
    meta = queue_keys("", "q").meta
    client = engine.client_of(meta)
    state = client.hget(meta, "rate_state")
    later = b"%d" % (store.store.now_ms() + 3_600_000)
    client.hset(meta, "rate_state", state.replace(state.split(b";")[1].split(b",")[0], later))
    assert 0 < store.reserve(9).next_due_ms <= 20
    store.pass_time(20)
    assert 2 >= len(given(store)) >= 1


def test_another_rate_applies_at_once(store):
    """After a change of the rate, the earlier starts count as starts at the new rate."""
    store.declare(rate="10/h burst 30")
    store.publish(*(message() for _ in range(60)))
    for _ in range(30):
        store.pass_time(1)
        assert 1 == len(given(store, 1))
    assert [] == given(store)
    store.configure(rate="1000/s burst 30")
    store.pass_time(35)
    assert 30 == len(given(store, 30))


def test_changes_of_the_rate_give_no_start(store):
    """A rate that changes back and forth gives no more starts than one of them."""
    store.declare(rate="10/h")
    store.publish(*(message() for _ in range(9)))
    assert 1 == len(given(store))
    for rate in ("9/h", "10/h burst 1", "9/h", "10/h"):
        store.configure(rate=rate)
        assert [] == given(store)


def test_a_removed_rate_is_forgotten(store):
    """The starts of a rate that was removed do not count for a later one."""
    store.declare(rate=SLOW)
    store.publish(*(message() for _ in range(5)))
    assert 1 == len(given(store))
    store.configure(rate=None)
    assert 1 == len(given(store, 1))
    store.configure(rate=SLOW)
    assert 1 == len(given(store))


def test_the_same_rate_again_gives_no_second_burst(store):
    """A rate that is set to its own value keeps its state."""
    store.declare(rate=SLOW)
    store.publish(message(), message())
    assert 1 == len(given(store))
    store.configure(rate=SLOW)
    assert [] == given(store)
    store.configure(concurrency="5")
    assert [] == given(store)


def test_the_rate_and_the_slots(store):
    """Both limits hold: the stricter one decides."""
    store.declare(rate=f"{SLOW} burst 3", concurrency="2")
    store.publish(*(message() for _ in range(9)))
    held = given(store)
    assert 2 == len(held)
    store.ack(*(item.tag for item in held), "")
    assert 1 == len(given(store))


# -- no_ack


@pytest.mark.parametrize("limits", [{"concurrency": "1"}, {"rate": "1/s"}])
def test_no_ack_is_refused(store, limits):
    """A queue with limits gives nothing to a consumer that acks nothing, and says why."""
    store.declare(**limits)
    store.publish(message())
    with pytest.raises(ReliqError, match=r"q.*(x-concurrency|limits).*no_ack"):
        store.reserve(no_ack=True)
    assert {"ready": 1} == store.places()


# -- early acks


def test_a_begun_message_occupies_its_slot(full):
    """A message whose task runs is unacked, renewed like others, and keeps its slot."""
    assert [] == full.begin_tasks(*full.held)
    assert [] == given(full)
    assert [] == full.renew(*full.held)
    assert [] == full.begin_tasks(*full.held)
    assert {"ready": 4, "unacked": 2} == full.places()
    assert 0 == full.ledger("acked")


def test_a_begun_message_never_returns(full):
    """The end of its lease counts it as acked: it is neither restored nor lapsed."""
    full.begin_tasks(full.held[0])
    full.renew(full.held[0])  # an ordinary renewal keeps the mark
    ended = full.return_ended(*full.held)
    assert {"s/1": 1} == dict(ended.by_consumer)
    assert {"ready": 5} == full.places()
    assert (1, 1, 1) == tuple(map(full.ledger, ("acked", "restored", "lapsed")))
    assert [full.held[0].tag] == full.renew_gone(full.held[0])


@pytest.mark.parametrize("how", ["released", "nacked", "undelivered", "begun"])
def test_a_begun_message_is_finished_by_a_return(full, how):
    """However a begun message is given back, it counts as acked."""
    full.begin_tasks(full.held[0])
    assert [] == full.release(how, full.held[0])
    assert {"ready": 4, "unacked": 1} == full.places()
    assert (1, 0, 0) == tuple(map(full.ledger, ("acked", "nacked", "released")))


def test_a_lost_lease_cannot_begin(full, other):
    """A begin under an outdated lease is reported as lost, and marks nothing."""
    full.return_ended(full.held[0])
    (again,) = given(other)
    assert [full.held[0].tag] == full.begin_tasks(full.held[0])
    other.return_ended(again)
    assert {"ready": 5, "unacked": 1} == full.places()


# -- malformed fields


@pytest.mark.parametrize("field", ["concurrency", "rate", "rate_state"])
@pytest.mark.parametrize("value", ["", "many", "-1", "nan", "1e999", "0/s", "1/s burst 0", ";;,"])
def test_malformed_limits_stop_no_queue(store, engine, field, value):
    """A field that was damaged limits nothing, or as much as one, but never blocks its queue."""
    store.declare(concurrency="4", rate="1000/s burst 4")
    store.publish(*(message() for _ in range(6)))
    meta = queue_keys("", "q").meta
    engine.client_of(meta).hset(meta, field, value)
    held = given(store, 2)
    assert held
    store.release("undelivered", *held)
    held = given(store, 1)
    assert held
    with suppress(ReliqError):
        store.configure(concurrency="1", rate=None)
    store.ack(held[0].tag, "")
    wait_until(lambda: len(given(store, 9)) == 1)
