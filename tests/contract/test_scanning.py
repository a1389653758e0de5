"""Scans of the places of a queue in steps, and the search for one message."""

from __future__ import annotations

import pytest

from reliq.message.envelope import Envelope, decode, encode
from reliq.values.inspection import SCANNED_AT_ONCE, SCANNED_BYTES, Position
from tests.contract.steps import LONG_MS, lease_of, message

PLACES = ("ready", "delayed", "unacked", "dead")


def envelope(body="", **headers):
    """Return the bytes of a message."""
    return encode(Envelope(body, "text/plain", "utf-8", headers, {}, "", "q"))


def fill(store, n, **headers):
    """Put *n* messages in each place; return their tags by place."""
    found = {}
    for place in ("dead", "unacked", "delayed", "ready"):
        delay_ms = LONG_MS if place == "delayed" else 0
        items = [
            message(envelope=envelope(f"body {i}", id=f"{place}-{i}", **headers), delay_ms=delay_ms)
            for i in range(n)
        ]
        for start in range(0, n, 200):
            store.publish(*items[start : start + 200])
        if place in {"dead", "unacked"}:
            taken = store.take(n)
            if place == "dead":
                for item in taken:
                    store.dead_letter(lease_of(item))
        found[place] = [item.tag for item in items]
    return found


def walk(store, place, at_once=SCANNED_AT_ONCE, **arguments):
    """Return the items of all steps, and the number of messages that each step read."""
    items, sizes, start = [], [], Position()
    while start is not None:
        looked = store.store.reads.scan("q", place, start, at_once, **arguments)
        items += looked.items
        sizes.append(looked.looked)
        start = looked.after
        assert len(sizes) < 1000
    return items, sizes


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_steps_see_everything_once(store, place):
    """Steps of any size read each message once, even if many have the same due or death time."""
    tags = fill(store, 23)[place]
    for at_once in (1, 5, 23, 100):
        items, sizes = walk(store, place, at_once)
        assert sorted(tags) == sorted(item.tag for item in items)
        assert sum(sizes) == 23
    in_order = [item.tag for item in items]
    by_rank = store.store.reads.scan("q", place, Position("", 20))
    assert in_order[20:] == [item.tag for item in by_rank.items]
    assert by_rank.after is None


def test_what_leaves_meanwhile_hides_nothing(store):
    """A step begins after the last message of the previous step, so removals hide nothing."""
    tags = fill(store, 10)["ready"]
    first = store.store.reads.scan("q", "ready", Position(), 5)
    store.take(3)
    second = store.store.reads.scan("q", "ready", first.after, 100)
    assert tags == [item.tag for item in (*first.items, *second.items)]


def test_what_is_known_of_what_is_found(store):
    """A scan of each place returns its specific fields, such as the reason of a dead letter."""
    fill(store, 1)
    now_ms = store.store.now_ms()
    (ready,), (delayed,), (unacked,), (dead,) = (
        store.store.reads.scan("q", place, Position(), whole_bytes=1000).items for place in PLACES
    )
    assert (-1, 0, "", "") == (ready.failed, ready.at_ms, ready.consumer, ready.reason)
    assert "body 0" == decode(ready.envelope).body
    assert ready.size == len(ready.envelope)
    assert LONG_MS - 5000 < delayed.at_ms - now_ms <= LONG_MS
    assert ("s/1", True) == (unacked.consumer, unacked.at_ms > now_ms)
    assert ("rejected", "s/1", 0) == (dead.reason, dead.consumer, dead.failed)
    assert 0 <= now_ms - dead.at_ms < 5000


def test_a_search_returns_what_has_the_text_behind_its_body(store):
    """A search finds messages by text in their headers, and does not search their bodies."""
    fill(store, 30, task="app.tasks.ship")
    items, sizes = walk(store, "ready", 10, contains="ready-17")
    assert ["ready-17"] == [decode(item.envelope).headers["id"] for item in items]
    assert 30 == sum(sizes)
    assert [18] == store.store.reads.scan("q", "ready", Position(), contains="ready-17").numbers
    assert 30 == len(walk(store, "dead", contains="tasks.ship")[0])
    assert [] == walk(store, "ready", contains="body")[0]


def test_a_large_body_is_left_out(store):
    """A large body is omitted, and a message beyond a step's size is not read at all."""
    large, huge = "x" * 10_000, "x" * (SCANNED_BYTES + 1)
    store.publish(
        message(envelope=envelope(large, id="a")), message(envelope=envelope(huge, id="b"))
    )
    first, second = walk(store, "ready", whole_bytes=10_000)[0]
    assert (b"", "a") == (decode(first.envelope).body, decode(first.envelope).headers["id"])
    assert first.size > 10_000
    assert (None, True) == (second.envelope, second.size > SCANNED_BYTES)
    assert ["a"] == [
        decode(item.envelope).headers["id"] for item in walk(store, "ready", contains="a")[0]
    ]


def test_a_step_reads_no_more_than_there_is_room_for(store):
    """A step of a scan is bounded in bytes: it reads three messages of 300 kB."""
    for _ in range(2):
        store.publish(*(message(envelope=envelope("x" * 300_000)) for _ in range(4)))
    items, sizes = walk(store, "ready")
    assert ([3, 3, 2], 8) == (sizes, len(items))


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_found_in_an_empty_place_nor_without_a_queue(store, place):
    """A scan of an empty place or of a missing queue returns nothing and creates no queue."""
    store.declare()
    for queue in ("q", "unknown"):
        assert ([], [], 0, None) == store.store.reads.scan(queue, place, Position())
    assert store.store.reads.status("unknown") is None


def test_a_message_is_looked_up_by_its_tag(store):
    """A search by tag returns the place, the number of messages before it, and the message."""
    tags = fill(store, 3)
    for place in PLACES:
        found = store.store.reads.locate("q", tags[place][0])
        assert place == found.place
        assert f"{place}-0" == decode(found.stored.envelope).headers["id"]
        assert tags[place][0] == found.stored.tag
        assert len(found.stored.envelope) == found.stored.size
    assert [0, 1, 2] == [store.store.reads.locate("q", tag).before for tag in tags["ready"]]
    assert "rejected" == store.store.reads.locate("q", tags["dead"][0]).stored.reason
    assert "s/1" == store.store.reads.locate("q", tags["unacked"][0]).stored.consumer


def test_a_message_that_expires_says_when(store):
    """A search by tag returns the time of expiry while the message waits."""
    item = message(ttl_ms=LONG_MS)
    before = store.store.now_ms()
    store.publish(item)
    expires_ms = store.store.reads.locate("q", item.tag).expires_ms
    assert before + LONG_MS <= expires_ms <= store.store.now_ms() + LONG_MS
    store.take()
    assert store.store.reads.locate("q", item.tag).expires_ms is None


def test_a_message_that_is_not_there(store):
    """A search for an acked message, or in another or a missing queue, returns None."""
    item = message()
    store.publish(item)
    assert store.store.reads.locate("other", item.tag) is None
    store.ack(*(taken.tag for taken in store.take()))
    assert store.store.reads.locate("q", item.tag) is None
    assert store.store.reads.locate("unknown", item.tag) is None


def test_delayed_messages_are_counted_by_when_they_are_due(store):
    """Delayed messages are counted by their due time, up to each of the given times."""
    now_ms = store.store.now_ms()
    store.publish(*(message(delay_ms=LONG_MS * n) for n in (1, 1, 2, 5)), message())
    times = [now_ms, now_ms + LONG_MS * 3 // 2, now_ms + LONG_MS * 3, 2**53]
    assert [0, 2, 3, 4] == store.store.reads.count_due("q", times)
    assert [0] == store.store.reads.count_due("unknown", [now_ms])


# -- failed deliveries


def failures(store, queue="q"):
    """Return the stored failures without their times."""
    return [
        (item.tag, item.how, item.failed, item.consumer)
        for item in store.store.reads.failures(queue)
    ]


def test_failed_deliveries_are_kept(store, other):
    """Failed deliveries are stored with the message, the kind of failure and the holder.

    They are kept after the message has left the queue.
    """
    item = message()
    store.publish(item)
    before = store.store.now_ms()
    store.release("nacked", *store.take())
    other.end(*other.take())
    other.restore()
    store.dead_letter(*store.take())
    assert [
        (item.tag, "requeued", 1, "s/1"),
        (item.tag, "lapsed", 2, "s/2"),
        (item.tag, "rejected", 2, "s/1"),
    ] == failures(store)
    times = [item.at_ms for item in store.store.reads.failures("q")]
    assert before <= times[0] <= times[1] <= times[2] <= store.store.now_ms()
    store.ack(item.tag)
    assert 3 == len(failures(store))
    store.delete()
    assert [] == failures(store) == failures(store, "unknown")


def test_what_is_given_back_in_order_has_not_failed(store):
    """Orderly returns and acks are not stored as failures."""
    store.publish(message(), message())
    first, second = store.take(2)
    store.release("released", first)
    store.release("undelivered", *store.take())
    store.ack(second.tag)
    assert [] == failures(store)


@pytest.mark.slow
def test_the_last_failed_deliveries_are_kept(store):
    """A queue keeps its last thousand failures."""
    store.publish(message(), message())
    kept, failing = store.take(2)
    store.release("nacked", kept)
    for _ in range(6):
        store.publish(*(message(rank=0) for _ in range(170)))
        store.release("nacked", *store.take(170))
        for item in store.take(170):
            store.ack(item.tag)
    found = failures(store)
    assert 1000 == len(found)
    assert kept.tag not in {tag for tag, *_ in found}
    assert {"requeued"} == {how for _, how, *_ in found}
    store.ack(failing.tag)
