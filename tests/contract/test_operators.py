"""The store's methods for operators: scan, configure, about and diagnose."""

import pytest

from reliq.message.queue_names import partition_name
from reliq.values.inspection import BrokerInfo, Finding, Position
from tests.contract.steps import LONG_MS, message

# -- scan


def seen(store, place, limit=10, skip=0, queue="q"):
    """Return the envelopes of a place."""
    looked = store.store.reads.scan(queue, place, Position("", skip), limit, whole_bytes=10_000)
    return [item.envelope for item in looked.items]


@pytest.mark.slow
def test_ready_messages_in_the_order_in_which_they_are_given_out(store):
    """Ready messages are listed by priority and then by age, as delivered, without a change."""
    store.publish(message(envelope=b"late", rank=9), message(envelope=b"b"), message(envelope=b"c"))
    store.publish(message(envelope=b"first", rank=0))
    for _ in range(2):
        assert [b"first", b"b", b"c", b"late"] == seen(store, "ready")
    assert {"ready": 4} == store.places()
    assert [b"first", b"b", b"c", b"late"] == [item.envelope for item in store.take(4)]


def test_some_of_them(store):
    """A scan has a limit and an offset, and is empty beyond the end."""
    store.publish(*(message(envelope=b"%d" % number) for number in range(5)))
    assert [b"1", b"2"] == seen(store, "ready", 2, 1)
    assert [b"4"] == seen(store, "ready", 10, 4)
    assert [] == seen(store, "ready", 10, 5)


def test_what_is_known_of_a_ready_message(store):
    """A ready message shows its tag and its failures, which are -1 before its first delivery."""
    first = message()
    store.publish(first)
    (item,) = store.store.reads.scan("q", "ready", Position(), whole_bytes=99).items
    assert (first.tag, -1, 0, "") == (item.tag, item.failed, item.at_ms, item.consumer)
    store.release("nacked", *store.take())
    (item,) = store.store.reads.scan("q", "ready", Position(), whole_bytes=99).items
    assert (first.tag, 1) == (item.tag, item.failed)


def test_delayed_messages_by_when_they_are_due(store):
    """Delayed messages are listed by their due time on the broker's clock."""
    before = store.store.now_ms()
    store.publish(message(envelope=b"b", delay_ms=2 * LONG_MS), message(delay_ms=LONG_MS))
    after = store.store.now_ms()
    first, second = store.store.reads.scan("q", "delayed", Position(), whole_bytes=99).items
    assert [b"", b"b"] == [first.envelope, second.envelope]
    assert before <= first.at_ms - LONG_MS <= after
    assert before <= second.at_ms - 2 * LONG_MS <= after


def test_held_messages_by_the_end_of_their_lease(store, other):
    """Held messages are listed by the end of their lease, with their holder."""
    store.publish(message(envelope=b"a"), message(envelope=b"b"))
    before = store.store.now_ms()
    store.take(lease_ms=2 * LONG_MS)
    other.take(lease_ms=LONG_MS)
    after = store.store.now_ms()
    first, second = store.store.reads.scan("q", "unacked", Position(), whole_bytes=99).items
    assert ("s/2", b"b") == (first.consumer, first.envelope)
    assert ("s/1", b"a") == (second.consumer, second.envelope)
    assert before <= first.at_ms - LONG_MS <= after


def test_what_is_on_its_way_elsewhere_is_held_by_the_move(store):
    """A message in a move is listed as held by the move, without an end of a lease."""
    store.publish(message())
    store.store.move_out("q", "broker:b")
    (item,) = store.store.reads.scan("q", "unacked", Position(), whole_bytes=99).items
    assert ("move/broker:b", 0) == (item.consumer, item.at_ms)
    store.end_move(item.tag)


@pytest.mark.parametrize("place", ["ready", "delayed", "unacked"])
def test_an_empty_place_and_no_queue(store, place):
    """An empty place and a missing queue have no messages, and a scan creates no queue."""
    store.declare()
    assert [] == seen(store, place)
    assert [] == seen(store, place, queue="unknown")
    assert store.store.reads.status("unknown") is None


# -- configure


def test_settings_can_be_changed_and_taken_back(store):
    """Changed settings apply from the next publish on, and can be reset one by one."""
    store.declare(arguments=b"a", max_length="5")
    assert {"max_length": "5"} == store.store.configure("q", {})
    changed = store.store.configure("q", {"max_length": "2", "delivery_limit": "7"})
    assert {"max_length": "2", "delivery_limit": "7"} == changed
    store.publish(message(), message(), message())
    assert {"ready": 2, "dead": 1} == store.places()
    assert {"delivery_limit": "7"} == store.store.configure("q", {"max_length": None})
    store.publish(message())
    assert {"ready": 3, "dead": 1} == store.places()


def test_the_declaration_stays_what_it_was(store):
    """A redeclaration after a change of settings succeeds and does not reset them.

    A starting worker declares its queues as before.
    """
    store.declare(arguments=b"a", max_length="5")
    store.store.configure("q", {"max_length": "2"})
    assert "existed" == store.declare(arguments=b"a", max_length="5")[0]
    assert {"max_length": "2"} == store.store.configure("q", {})


def test_a_queue_that_does_not_exist_has_no_settings(store):
    """Settings of a missing queue are refused, and the attempt creates no queue."""
    assert store.store.configure("q", {"max_length": "2"}) is None
    assert store.store.configure("q", {}) is None
    assert store.store.reads.status("q") is None


def test_a_changed_ttl_and_lease_hold(store):
    """A changed TTL and a changed lease apply to the next steps."""
    store.declare(lease="60000")
    store.store.configure("q", {"message_ttl": "1", "lease": str(3 * LONG_MS)})
    store.publish(message())
    store.pass_time(5)
    assert [] == store.reserve(1).deliveries
    store.store.configure("q", {"message_ttl": None})
    store.publish(message())
    assert 3 * LONG_MS == store.reserve(1).lease_ms


# -- about, diagnose


def test_a_broker_says_what_it_is(store):
    """A broker reports its engine, its role, its persistence and its memory."""
    about = store.store.reads.about()
    assert isinstance(about, BrokerInfo)
    assert store.store.broker == about.broker
    assert about.engine
    assert about.version
    assert about.persistence
    assert about.role in {"master", "", "cluster of 3 masters"}
    assert about.memory_bytes is None or about.memory_bytes > 0
    assert about.memory_limit_bytes is None or about.memory_limit_bytes > 0


def test_a_diagnosis_says_what_was_looked_at(store):
    """A diagnosis lists its checks with severities, and each problem has a remedy."""
    store.declare()
    found = store.store.reads.diagnose()
    assert found
    for item in found:
        assert isinstance(item, Finding)
        assert item.severity in {"ok", "info", "warning", "error"}
        assert item.check
        assert item.message
        assert item.remedy or item.severity in {"ok", "info"}
    assert [] == [item for item in found if item.severity == "error"]


def test_the_register_knows_pools_and_options(store):
    """A consumer may register its pool and its options."""
    client_id, run_id = store.store.server()
    mine = {"client_id": client_id, "run_id": run_id, "host": "h", "pid": "7", "version": "1"}
    store.heartbeat("h:1", **mine)
    store.heartbeat("h:2", **mine, pool="prefork", options='{"delivery_limit": 20}')
    first, second = store.store.reads.consumers()
    assert ("", {}) == (first.pool, first.options)
    assert ("prefork", {"delivery_limit": 20}) == (second.pool, second.options)


def test_all_queues_are_measured(store):
    """Without an unreachable node, the measures of all queues are complete."""
    assert [] == store.store.reads.measure_all().whole()
    for name in ("b", "a"):
        store.store.declare_queue(name, False, b"", {})
    found = store.store.reads.measure_all()
    assert ["a", "b"] == [measure.status.name for measure in found.whole()] == found.asked
    assert found.complete


# -- whereabouts


def test_where_messages_are(store):
    """The place of a message in a queue is "there", "dead" or empty."""
    ready, delayed = message(), message(delay_ms=LONG_MS)
    taken, died, done = message(rank=0), message(rank=0), message(rank=0)
    store.publish(taken, died, done)
    *_, died_lease, done_lease = store.take(3)
    store.publish(ready, delayed, message(queue="other"))
    store.dead_letter(died_lease)
    store.ack(done_lease.tag)
    asked = [item.tag for item in (ready, delayed, taken, died, done)]
    found = store.store.reads.whereabouts("q", [*asked, "nobody's"])
    assert ["there", "there", "there", "dead", "", ""] == list(found.values())
    assert [*asked, "nobody's"] == list(found)
    assert {"", "there"} >= {*store.store.reads.whereabouts("other", asked).values()}
    assert {""} == {*store.store.reads.whereabouts("no queue", asked).values()}
    assert {} == store.store.reads.whereabouts("q", [])


def test_where_many_messages_are(store):
    """Places of more messages than one step reads are returned completely."""
    many = [message() for _ in range(450)]
    store.publish(*many[::2])
    found = store.store.reads.whereabouts("q", [item.tag for item in many])
    assert ["there", ""] * 225 == list(found.values())


def test_where_the_messages_of_a_partition_are(store):
    """The place of a partition's message is found under the partition's name only."""
    name = partition_name("q", 1)
    item = message(queue=name)
    store.publish(item)
    assert {item.tag: "there"} == store.store.reads.whereabouts(name, [item.tag])
    assert {item.tag: ""} == store.store.reads.whereabouts("q", [item.tag])
