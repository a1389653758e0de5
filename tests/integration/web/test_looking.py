"""The inspector's data for the web page: history, messages and searches."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise

import pytest
from kombu import Connection

from reliq import ConfigurationError, NotFound
from reliq.admin import Inspector, Snapshot
from reliq.admin.dead_letter_choice import exception_of
from reliq.store.urls import connect as engine
from reliq.values.history import snapshots, thinned
from reliq.values.values import Lease
from tests.integration.kombu_client import FAST, Taker, declare, publish
from tests.support.history import noted
from tests.support.waiting import wait_until


@pytest.fixture
def connection(url):
    """Return an open connection."""
    with Connection(url, transport_options=FAST) as found:
        yield found


@pytest.fixture
def inspector(url, connection):
    """Return an inspector of the broker."""
    connection.ensure_connection()
    with Inspector(url) as found:
        yield found


# -- history


def test_a_consumer_notes_the_history(connection, inspector):
    """A consumer records the history of every queue, and a query returns the recorded snapshots."""
    publish(connection, "q", 1, 2)
    publish(connection, "lonely", 1)
    assert [] == inspector.history("q")
    taker = Taker(connection, "q")
    taker.take_bodies(2)
    wait_until(lambda: inspector.history("q"))
    (snapshot,) = inspector.history("q")
    assert isinstance(snapshot, Snapshot)
    assert 2 == snapshot.ready + snapshot.unacked + inspector.status("q").ledger.get("acked", 0)
    # The second queue has no consumer; the consumer of the first one makes its passes.
    (lonely,) = wait_until(lambda: inspector.history("lonely"))
    assert 1 == lonely.ready
    assert [] == inspector.history("q", since_ms=inspector.now_ms() + 60_000)
    with pytest.raises(NotFound):
        inspector.history("unknown")
    with pytest.raises(ConfigurationError):
        inspector.history("q", points=0)


MINUTE = 60_000


def series(counts, start=1000, every=1):
    """Return the snapshots of a queue with one (ready, total published) pair for each minute."""
    last, blocks = "", {}
    for step, (ready, published) in enumerate(counts):
        at = (start + step * every) * MINUTE
        block, records, last = noted(
            last, blocks.get(at // MINUTE // 60, b""), at, (ready, 0, 0, 0), (published, *[0] * 6)
        )
        blocks[block] = records
    return snapshots(blocks, 0, at)


def test_points_are_thinned_evenly():
    """Thinning keeps at most the requested points and preserves the sums of publishes and time."""
    found = thinned([series([(n, 100 * n) for n in range(120)])], 10 * MINUTE)
    assert 12 < len(found) + 1 <= 14
    assert 100 * 119 == sum(item.published for item in found)
    assert 119 * MINUTE == sum(item.span_ms for item in found)
    times = [item.at_ms for item in found]
    assert {10 * MINUTE} == {b - a for a, b in pairwise(times[:-1])}
    assert 119 == found[-1].ready


def test_partitions_are_added_up():
    """A partition without a recent snapshot counts with its last one."""
    one = series([(5, 10), (6, 20), (7, 30)])
    other = series([(100, 0)])
    found = thinned([one, other], MINUTE)
    assert [105, 106, 107] == [item.ready for item in found]
    assert [0, 10, 10] == [item.published for item in found]


def test_a_minute_takes_few_bytes():
    """A minute takes the bytes stated in docs/metrics.md, for busy, idle and huge queues."""

    def size(counts, counters):
        last, records = "", b""
        for minute in range(60):
            _, records, last = noted(
                last, records, minute * MINUTE, counts(minute), counters(minute)
            )
        return len(records)

    idle = size(lambda _: (0, 0, 0, 0), lambda _: (9,) * 7)
    busy = size(lambda n: (100 + n, 3, 16, 2), lambda n: (n * 60_000,) * 3 + (n,) * 4)
    huge = size(lambda n: (10**6 + n, 10**6, 10**4, 10**6), lambda n: (n * 10**6,) * 7)
    assert idle == 13
    assert busy <= 60 * 23
    assert huge <= 60 * 35


# -- pages


def dead_letters(connection, queue, n):
    """Make *n* dead letters in a queue by rejecting its messages."""
    publish(connection, queue, *range(n))
    taken = Taker(connection, queue).take(n)
    for message in taken:
        message.reject()


def test_every_page_of_every_place(connection, inspector):
    """The pages of each state contain every message once, in one order."""
    dead_letters(connection, "q", 7)
    publish(connection, "q", *range(11))
    for state, total in (("ready", 11), ("dead", 7)):
        pages = [inspector.peek("q", state, limit=3, skip=skip) for skip in range(0, total + 3, 3)]
        tags = [message.tag for page in pages for message in page]
        assert total == len(set(tags)) == len(tags)
        assert [] == pages[-1]
        assert tags == [message.tag for message in inspector.peek("q", state, limit=100)]
        assert {state} == {message.state for page in pages for message in page}
    (dead,) = inspector.peek("q", "dead", limit=1, skip=6)
    assert ("rejected", True) == (dead.reason, dead.died_ms > 0)


def test_pages_of_a_divided_queue(redis_url):
    """Each message is on one page, even in late pages without a strict order."""
    with Connection(redis_url, transport_options=FAST) as connection:
        declare(connection, "q", queue_arguments={"x-partitions": 3})
        publish(connection, "q", *range(2500))
        with Inspector(redis_url) as inspector:
            assert 3 == inspector.status("q").partitions
            first = inspector.peek("q", limit=1000)
            assert sorted(m.published_ms for m in first) == [m.published_ms for m in first]
            tags = [
                message.tag
                for skip in range(1000, 2500, 100)
                for message in inspector.peek("q", limit=100, skip=skip)
            ]
            assert len(set(tags)) == len(tags)
            assert 1500 - 3 <= len(tags) <= 1500 + 3


def test_a_large_body_is_not_read_to_list_it(connection, inspector):
    """The listing of a large message has its size, but not its body."""
    publish(connection, "q", "x" * 100_000, "small")
    large, small = inspector.peek("q")
    assert (None, True) == (large.body, large.size > 100_000)
    assert "small" == small.body


def test_when_delayed_messages_fall_due(connection, inspector):
    """The due messages are counted for each coming minute, and together for later times."""
    for delay_s in (30, 90, 90, 10_000):
        publish(connection, "q", delay_s, headers={"x-delay": 1000 * delay_s})
    assert [1, 2, 0, 1] == inspector.due("q", points=3)
    assert [4, 0] == inspector.due("q", every_s=20_000, points=1)
    with pytest.raises(NotFound):
        inspector.due("unknown")
    with pytest.raises(ConfigurationError, match="points"):
        inspector.due("q", points=0)


# -- one message


def celery_message(connection, queue, task, name, body="[]", **headers):
    """Publish a message like Celery's."""
    headers = {"task": task, "id": name, "argsrepr": "(1,)", **headers}
    with connection.Producer() as producer:
        producer.publish(
            body,
            routing_key=queue,
            exchange="",
            headers=headers,
            content_type="application/json",
            content_encoding="utf-8",
            correlation_id=name,
        )


def test_a_message_by_its_tag_and_by_its_id(connection, inspector):
    """The details contain the message's place, headers, whole body and history."""
    celery_message(connection, "q", "app.other", "id-1")
    celery_message(connection, "q", "app.ship", "id-2", body="[" + "1," * 5000 + "1]")
    listed = inspector.peek("q")[1]
    found = inspector.message("q", listed.tag)
    assert listed.tag == inspector.message("q", "id-2").message.tag
    assert ("ready", "app.ship", "id-2") == (
        found.message.state,
        found.message.task,
        found.message.id,
    )
    assert (1, False, "q") == (found.before, found.delivered, found.partition)
    assert ("app.ship", "id-2") == (found.headers["task"], found.properties["correlation_id"])
    assert 10_003 == len(found.body)
    assert ("", "q", "utf-8") == (found.exchange, found.routing_key, found.content_encoding)
    assert ["published"] == [event.what for event in found.history]
    assert listed.published_ms == found.history[0].at_ms


def test_a_message_that_is_held_dead_and_gone(connection, inspector):
    """The details name the holder or the reason of death; of a gone message, the tag's data."""
    for number in range(3):
        celery_message(connection, "q", "app.ship", f"id-{number}")
    first, second, third = Taker(connection, "q").take(3)
    tags = {message.id: message.tag for message in inspector.peek("q", "unacked")}
    held = inspector.message("q", "id-0")
    assert ("unacked", True) == (held.message.state, held.message.lease_until_ms > 0)
    assert held.message.consumer == held.history[-1].consumer
    second.reject()
    third.ack()
    wait_until(lambda: inspector.message("q", tags["id-2"]).message.state == "gone")
    wait_until(lambda: inspector.message("q", "id-1").message.state == "dead")
    dead = inspector.message("q", tags["id-1"])
    assert ["published", "died"] == [event.what for event in dead.history]
    assert ("rejected", dead.message.died_ms) == (dead.history[-1].detail, dead.history[-1].at_ms)
    gone = inspector.message("q", tags["id-2"])
    assert (None, {}, None) == (gone.before, gone.headers, gone.body)
    assert gone.message.published_ms > 0
    with pytest.raises(NotFound, match=r"no message with the id 'id-2'.* 2 of 2"):
        inspector.message("q", "id-2")
    with pytest.raises(NotFound):
        inspector.message("unknown", tags["id-1"])
    first.ack()


def test_failed_deliveries_are_in_the_history_of_a_message(connection, inspector):
    """The history has each failed delivery and its end, even after the message's death."""
    celery_message(connection, "q", "app.ship", "id-1")
    taker = Taker(connection, "q")
    (first,) = taker.take()
    tag = inspector.peek("q", "unacked")[0].tag
    first.requeue()
    (second,) = taker.take()
    found = inspector.message("q", tag)
    assert ["published", "failed", "held"] == [event.what for event in found.history]
    failed, held = found.history[1:]
    assert ("requeued", 1, held.consumer) == (failed.detail, failed.count, failed.consumer)
    assert (True, 1) == (found.delivered, found.message.count)
    second.reject()
    wait_until(lambda: inspector.message("q", tag).message.state == "dead")
    dead = inspector.message("q", tag)
    assert ["published", "failed", "died"] == [event.what for event in dead.history]
    assert inspector.purge_dead_letters("q") == 1
    gone = inspector.message("q", tag)
    assert "gone" == gone.message.state
    assert dead.history == gone.history


# -- search


def test_a_search_finds_tasks_and_ids_in_all_queues(connection, inspector):
    """A search matches parts of task names and ids, and each call continues at the last cursor."""
    for number in range(30):
        celery_message(connection, f"q{number % 3}", f"app.t{number % 2}", f"id-{number:02}")
    everything = inspector.find("app.", limit=100)
    assert (30, 30, 30, None) == (
        len(everything.found),
        everything.looked,
        everything.total,
        everything.cursor,
    )
    found, cursor, calls = [], None, 0
    while calls == 0 or cursor:
        search = inspector.find("app.t1", limit=4, looks=7, cursor=cursor)
        assert len(search.found) <= 4
        assert search.total == 30
        found += search.found
        cursor, calls = search.cursor, calls + 1
    assert 15 == len({message.id for message in found}) == len(found)
    assert {"app.t1"} == {message.task for message in found}
    (one,) = inspector.find("id-17").found
    assert ("q2", "id-17") == (one.queue, one.id)
    assert [one.tag] == [message.tag for message in inspector.find(one.tag).found]
    assert [] == inspector.find("id-17", "q0").found
    assert [] == inspector.find("q2").found, "names of queues are no tasks"


@pytest.mark.parametrize("cursor", ["", "junk", "W10", "WyJxIiwgImRlYWQiLCAibmFuIiwgMCwgMF0"])
def test_a_search_refuses_what_is_no_cursor(inspector, cursor):
    """A search refuses an invalid cursor and an empty text."""
    with pytest.raises(ConfigurationError, match="cursor"):
        inspector.find("x", cursor=cursor)
    with pytest.raises(ConfigurationError, match="text"):
        inspector.find("")
    with pytest.raises(NotFound):
        inspector.find("x", "unknown")


def test_what_a_consumer_holds(url, connection, inspector):
    """The pages of a consumer's messages contain all of its leases and no others."""
    publish(connection, "q", *range(8))
    publish(connection, "other", *range(2))
    with closing(engine(url, FAST, "stranger/1")) as store:
        assert 3 == len(store.reserve("q", 3, 60_000, False).deliveries)
        held = Taker(connection, "q", "other").take(7)
        (consumer,) = wait_until(inspector.consumers)
        first = inspector.held_by(consumer.id, limit=4)
        rest = inspector.held_by(consumer.id, limit=4, cursor=first.cursor)
        assert (4, 3, 10) == (len(first.found), len(rest.found), first.total)
        found = [*first.found, *rest.found]
        assert 7 == len({message.tag for message in found})
        assert {"q", "other"} == {message.queue for message in found}
        assert all(message.lease_until_ms for message in found)
        assert 7 == len(inspector.held_by(found[0].consumer).found)  # with its connection
        with pytest.raises(NotFound):
            inspector.held_by("stranger")
        for message in held:
            message.ack()


# -- groups of dead letters


def test_dead_letters_are_grouped_by_what_they_died_of(url, connection, inspector):
    """Groups are counted in steps with a progress, and are listed, replayed and purged by name."""
    with closing(engine(url, FAST, "s/1")) as store:
        for number in range(40):
            celery_message(connection, "q", f"app.t{number % 2}", f"id-{number}")
        for number, item in enumerate(store.reserve("q", 40, 60_000, False).deliveries):
            error = f"ValueError: bad value {number}" if number % 4 else "lease 17 ended"
            store.dead_letter("q", "malformed", error, [Lease(item.tag, item.token)])
    groups, calls = inspector.dead_letter_groups("q", looks=15), 1
    assert (15, 40) == (groups.counted, groups.total)
    while groups.cursor:
        groups, calls = inspector.dead_letter_groups("q", groups, looks=15), calls + 1
    assert (40, 40, 3) == (groups.counted, groups.total, calls)
    assert [
        (20, "app.t1", "malformed", "ValueError"),
        (10, "app.t0", "malformed", "ValueError"),
        (10, "app.t0", "malformed", "lease # ended"),
    ] == sorted(
        [(item.count, item.task, item.reason, item.exception) for item in groups.groups],
        key=lambda item: (-item[0], item[3]),
    )
    largest = groups.groups[0]
    assert largest.first_ms <= largest.last_ms
    assert inspector.message("q", largest.tag).message.error == largest.error
    opened = inspector.dead_letters_of_group("q", largest.fingerprint, limit=15)
    rest = inspector.dead_letters_of_group("q", largest.fingerprint, cursor=opened.cursor)
    assert (15, 5, None) == (len(opened.found), len(rest.found), rest.cursor)
    assert {"app.t1"} == {message.task for message in (*opened.found, *rest.found)}
    assert 20 == inspector.count_dead_letters("q", fingerprint=largest.fingerprint)
    assert 20 == inspector.replay("q", fingerprint=largest.fingerprint)
    assert 10 == inspector.purge_dead_letters("q", fingerprint=groups.groups[1].fingerprint)
    left = inspector.dead_letter_groups("q")
    assert [groups.groups[2].fingerprint] == [item.fingerprint for item in left.groups]
    with pytest.raises(NotFound):
        inspector.dead_letter_groups("unknown")


@pytest.mark.parametrize(
    ("error", "exception"),
    [
        ("ValueError: no", "ValueError"),
        ("shop.errors.OutOfStock('x')", "shop.errors.OutOfStock"),
        ("KeyError('a: b')", "KeyError"),
        ("lease ended", "lease ended"),
        ("took 17 s\nof 3", "took # s"),
        ("", ""),
    ],
)
def test_what_errors_have_in_common(error, exception):
    """Errors are grouped by the exception's name, or by the text without its numbers."""
    assert exception == exception_of(error)
