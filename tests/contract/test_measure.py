"""The source of metrics: counts and ledgers of many queues, and their counters."""

from dataclasses import replace

import pytest

from reliq.admin.reporting import report
from reliq.message.delivery_tag import published_ms
from reliq.message.queue_names import partition_name
from reliq.values.values import Lease
from tests.contract.steps import LONG_MS, message


def measure(store, queue="q"):
    """Return the measure of one queue."""
    (found,) = store.store.reads.measure([queue])
    return found


@pytest.mark.slow
def test_many_queues_each_as_its_status_says(store):
    """Many queues are measured in the requested order, equal to their status, if they exist."""
    store.publish(message("a"), message("b"), message("b", delay_ms=LONG_MS))
    store.take(queue="b")
    found = store.store.reads.measure(["b", "none", "a"])
    assert ["b", "a"] == [item.status.name for item in found]
    assert [store.store.reads.status("b"), store.store.reads.status("a")] == [
        item.status for item in found
    ]
    assert [] == store.store.reads.measure([])


def test_more_queues_than_go_out_at_once(store):
    """The number of queues in one call has no limit."""
    names = [f"q{number}" for number in range(450)]
    for name in names:
        store.store.create_queue(name)
    assert names == [item.status.name for item in store.store.reads.measure(names)]


def test_ready_by_rank_and_the_oldest(store):
    """Ready messages are counted by rank, and the oldest is the oldest head of any rank."""
    tags = [f"{rank:02x}{ms:012x}{rank:016x}" for rank, ms in ((0, 900), (7, 500), (255, 700))]
    for rank, tag in zip((0, 7, 255), tags, strict=True):
        store.publish(message(rank=rank, tag=tag), message(rank=rank))
    found = measure(store)
    assert {0: 2, 7: 2, 255: 2} == found.ready
    assert 500 == found.oldest_ms == published_ms(tags[1])
    store.purge()
    found = measure(store)
    assert ({}, None) == (found.ready, found.oldest_ms)


def test_one_that_came_back_counts_from_its_publication(store):
    """The age of a returned message counts from its publication."""
    store.publish(replace(message(), tag=f"05{1000:012x}{'0' * 16}"))
    store.release("nacked", *store.take())
    assert 1000 == measure(store).oldest_ms


def test_a_report_counts_and_ages_at_one_instant(store, monkeypatch):
    """A report reads the counts and the ages of a queue at the same moment."""
    store.declare()
    store.publish(message())
    monkeypatch.setattr(store.store.reads, "about", lambda: None)
    for name in ("measure", "measure_all", "status"):
        look = getattr(store.store.reads, name)

        def look_and_purge(*given, look=look, **options):
            found = look(*given, **options)
            store.store.purge("q")
            return found

        monkeypatch.setattr(store.store.reads, name, look_and_purge)
    (found,) = report(store.store).queues
    assert found.ready == 1
    assert found.oldest_age_s is not None
    assert store.store.reads.measure(["q"])[0].status.ready == 0


def test_a_report_names_the_queue_of_a_lone_partition(store, monkeypatch):
    """A report names the queue of a partition, even if only that partition can be read."""
    monkeypatch.setattr(store.store.reads, "about", lambda: None)
    store.store.create_queue(partition_name("q", 1))
    assert ["q"] == [one.queue for one in report(store.store).queues]


def test_what_is_due(store):
    """Due messages that are not yet promoted count as due and as delayed."""
    store.publish(message(delay_ms=1), message(delay_ms=LONG_MS))
    store.pass_time(2)
    found = measure(store)
    assert (1, 2, {}) == (found.due, found.status.delayed, found.ready)
    assert abs(found.now_ms - store.store.now_ms()) < LONG_MS
    store.promote()
    found = measure(store)
    assert (0, 1, {5: 1}) == (found.due, found.status.delayed, found.ready)


def test_redeliveries_are_counted(store):
    """Each delivery of a message that was delivered before counts as a redelivery."""
    store.publish(message(), message())
    failed, returned = store.take(2)
    store.release("nacked", failed)
    store.release("released", returned)
    assert 0 == store.ledger("redelivered")
    store.take(2)
    assert 2 == store.ledger("redelivered")
    store.publish(message())
    store.release("released", *store.take())
    store.reserve(no_ack=True)
    assert 3 == store.ledger("redelivered")


def test_what_was_never_given_out_is_no_redelivery(store):
    """A message that returned undelivered from a buffer does not count as redelivered."""
    store.publish(message())
    store.release("undelivered", *store.take())
    store.take()
    assert 0 == store.ledger("redelivered")


def test_leases_that_ended_are_counted(connect):
    """Each lease that ended without its holder counts as lapsed; a release does not."""
    store = connect(delivery_limit=2)
    store.publish(message(), message())
    store.release("nacked", store.take(2)[0])
    assert 0 == store.ledger("lapsed")
    store.take()
    held = [Lease(tag, token) for tag, token in store.store.leases_of("q", "s/1")]
    store.end(*held)
    restored = store.restore()
    assert ({"s/1": 2}, 1) == (restored.by_consumer, len(restored.dead))
    assert 2 == store.ledger("lapsed")


def test_deaths_are_counted_by_reason(connect):
    """Each reason of death has a counter, and their sum is the number of dead letters."""
    store = connect(delivery_limit=None)
    store.declare(arguments=b"a", max_length="3", dead_expired="1")
    store.publish(*(message() for _ in range(3)))
    store.publish(message())  # the oldest is dropped
    rejected, unreadable, failed = store.take(3)
    store.dead_letter(rejected)
    store.dead_letter(unreadable, reason="undecodable")
    connect("s/2", delivery_limit=1).release("nacked", failed)
    store.publish(message(ttl_ms=0))
    store.promote()
    reasons = ("maxlen", "rejected", "undecodable", "delivery_limit", "expired")
    assert [1] * 5 == [store.ledger(f"dead:{reason}") for reason in reasons]
    assert 5 == store.ledger("dead_lettered")


def test_dead_letters_that_arrive_are_counted_by_reason(connect):
    """A dead letter from another broker counts under the reason of its death."""
    source, target = (
        connect("s/1", global_keyprefix="from."),
        connect("s/2", global_keyprefix="to."),
    )
    source.publish(message())
    source.dead_letter(*source.take(), reason="undecodable")
    (dead_letter,) = source.store.reads.dead_letters("q", 1)
    low_water, moves = source.store.begin_move("q", "broker:to", [dead_letter.tag])
    target.store.create_queue("q")
    target.store.accept("q", "from:q", low_water, [moves[0]._replace(dead_letter=dead_letter)])
    assert 1 == target.ledger("dead:undecodable") == target.ledger("dead_lettered")
