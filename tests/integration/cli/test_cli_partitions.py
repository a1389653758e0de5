"""Operators see a divided queue as one queue; an audit checks each partition."""

from __future__ import annotations

import pytest
from kombu import Connection, Queue

from reliq.admin import Inspector
from reliq.message.queue_names import partition_names
from tests.integration.kombu_client import FAST
from tests.support.commands import data, run

NAMES = partition_names("q", 4)


@pytest.fixture
def broker(client):
    """Return the URL of a broker with a divided queue of 20 messages."""
    connection = client.connect()
    queue = Queue("q", queue_arguments={"x-partitions": 4, "x-max-length": 100})
    for number in range(20):
        connection.Producer().publish(number, routing_key="q", declare=[queue], priority=number % 2)
    return client.url


def kill(url, count):
    """Make *count* dead letters."""
    with Connection(url, transport_options=FAST) as connection:
        queue = Queue("q", no_declare=True)(connection.default_channel)
        for _ in range(count):
            queue.get().reject()


@pytest.mark.slow
def test_status_shows_one_queue(broker):
    """`status` shows the sums of all partitions; `audit` has a line for each partition."""
    kill(broker, 3)
    (row,) = data(broker, "status")["queues"]
    assert ("q", 17, 3) == (row["queue"], row["ready"], row["dead"])
    results = data(broker, "audit")
    assert set(NAMES) == {result["queue"] for result in results}
    assert all(result["balanced"] for result in results)
    assert 0 == run(broker, "doctor").returncode


def test_messages_and_dead_letters_of_all_partitions(broker):
    """Messages and dead letters of all partitions are handled as those of one queue."""
    with Inspector(broker) as inspector:
        assert 20 == len(inspector.peek("q", limit=50))
        assert 5 == len(inspector.peek("q", limit=5, skip=15))
        assert [] == inspector.peek("q", "unacked")
    kill(broker, 8)
    with Inspector(broker) as inspector:
        found = inspector.dead_letters("q")
        assert 8 == len(found)
        assert [item.died_ms for item in found] == sorted(item.died_ms for item in found)
        assert 8 == inspector.count_dead_letters("q")
        assert 3 == inspector.replay("q", limit=3)
        assert [item.tag for item in found[3:]] == [
            item.tag for item in inspector.dead_letters("q")
        ]
        tag = found[4].tag
        assert tag == inspector.dead_letter("q", tag).tag
        assert 1 == inspector.purge_dead_letters("q", [tag])
        assert 4 == inspector.purge_dead_letters("q")
        assert 15 == inspector.status("q").ready


@pytest.mark.slow
def test_it_is_divided_by_command(broker):
    """`queue set` raises and lowers the number of partitions; settings apply to the whole queue."""
    assert 0 == run(broker, "queue", "set", "q", "--partitions", "8").returncode
    held = data(broker, "queue", "set", "q")[0]["settings"]
    assert (8, 100) == (held["x-partitions"], held["x-max-length"])
    assert 0 == run(broker, "queue", "set", "q", "partitions=2", "max-length=50").returncode
    held = data(broker, "queue", "set", "q")[0]["settings"]
    assert (2, 50) == (held["x-partitions"], held["x-max-length"])
    assert 0 == run(broker, "queue", "set", "q", "partitions=", "max-length=").returncode
    held = data(broker, "queue", "set", "q")[0]["settings"]
    assert (4, 100) == (held["x-partitions"], held["x-max-length"])
    refused = run(broker, "queue", "set", "q", "--partitions", "65")
    assert 0 != refused.returncode
    assert "from 1 to 64" in refused.stderr
    refused = run(broker, "queue", "set", NAMES[1], "--partitions", "2")
    assert 0 != refused.returncode
    assert "is a partition of 'q'" in refused.stderr


@pytest.mark.slow
def test_it_is_paused_purged_and_deleted_by_command(broker, client):
    """Pause, purge and delete apply to all partitions."""
    assert 0 == run(broker, "queue", "pause", "q").returncode
    connection = client.connect()
    queue = Queue("q", no_declare=True)(connection.default_channel)
    assert queue.get() is None
    assert 0 == run(broker, "queue", "resume", "q").returncode
    assert queue.get(no_ack=True) is not None
    assert 19 == data(broker, "queue", "purge", "q", "--yes")[0]["count"]
    assert 0 == data(broker, "queue", "delete", "q", "--yes")[0]["count"]
    assert [] == data(broker, "status")["queues"]


@pytest.mark.slow
def test_one_partition_is_not_changed_by_itself(broker):
    """A single partition cannot be changed, because settings are the queue's, but can be read."""
    kill(broker, 8)
    changes = (
        ("queue", "pause", NAMES[1]),
        ("queue", "resume", NAMES[1]),
        ("queue", "purge", NAMES[1], "--yes"),
        ("queue", "delete", NAMES[1], "--yes"),
        ("queue", "set", NAMES[1], "max-length=4"),
        ("dead", "replay", "q", "--to", NAMES[1]),
    )
    for change in changes:
        refused = run(broker, *change)
        assert 0 != refused.returncode, change
        assert f"{NAMES[1]!r} is a partition of 'q'" in refused.stderr
    with Inspector(broker) as inspector:
        status = inspector.status(NAMES[1])
        assert 5 == status.ready + status.dead
        assert not status.paused
        assert status.ready == len(inspector.peek(NAMES[1]))
        assert status.dead == len(inspector.dead_letters(NAMES[1]))
        assert 25 == int(inspector._store.configure(NAMES[1], {})["max_length"])
        assert 12 == inspector.status("q").ready


def test_a_partition_that_its_queue_has_lost_is_removed(broker):
    """A partition without its queue is deleted by its own name, the only way to reach it."""
    with Inspector(broker) as inspector:
        inspector._store.delete_queue("q")
        assert 5 == inspector.delete(NAMES[1])
        assert {*NAMES[2:]} == set(inspector._store.queues())


def test_its_own_partition_is_the_last(broker, monkeypatch):
    """The partition with the queue's name changes last, so an interrupted change is visible."""
    done = []
    with Inspector(broker) as inspector:
        store = inspector._store
        for method in ("pause", "purge"):
            do = getattr(store, method)
            monkeypatch.setattr(
                store, method, lambda name, *rest, do=do: (done.append(name), do(name, *rest))[1]
            )
        for change in (inspector.pause, inspector.resume, inspector.purge):
            done.clear()
            change("q")
            assert set(NAMES) == set(done)
            assert "q" == done[-1]


@pytest.mark.parametrize("change", ["pause", "resume"])
def test_a_partition_that_is_made_meanwhile(broker, monkeypatch, change):
    """A partition that is created during a pause or resume is changed as well."""
    with Inspector(broker) as inspector:
        store = inspector._store
        inspector.resume("q") if change == "pause" else inspector.pause("q")
        store.delete_queue(NAMES[2])
        pause = store.pause

        def made_before_its_own(name, paused):
            if name == "q" and store.layout(NAMES[2]) is None:
                store.declare_queue(NAMES[2], False, b"", {})
                pause(NAMES[2], not paused)
            return pause(name, paused)

        monkeypatch.setattr(store, "pause", made_before_its_own)
        getattr(inspector, change)("q")
        assert [change == "pause"] * len(NAMES) == [
            store.reads.status(name).paused for name in NAMES
        ]


@pytest.mark.slow
def test_it_is_moved_to_a_broker_that_divides_it_otherwise(broker, fresh_redis):
    """A move to a broker with other partitions keeps each message once."""
    target = fresh_redis.url("reliq")
    kill(broker, 2)
    moved = run(broker, "move", "q", "--from", broker, "--to", target)
    assert 0 == moved.returncode, moved.stderr
    (row,) = data(target, "status")["queues"]
    assert ("q", 18, 2) == (row["queue"], row["ready"], row["dead"])
    back = run(target, "move", "q", "--from", target, "--to", broker)
    assert 0 == back.returncode, back.stderr
    (row,) = data(broker, "status")["queues"]
    assert ("q", 18, 2) == (row["queue"], row["ready"], row["dead"])
