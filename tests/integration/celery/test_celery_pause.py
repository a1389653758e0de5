"""A paused queue accepts and keeps messages, and delivers none; running tasks finish."""

from __future__ import annotations

import pytest

from reliq import NotFound
from reliq.admin import Inspector
from tests.support.waiting import stays_true
from tests.support.workers import pools

from ..kombu_client import Taker, get, publish

# Only a notification can deliver the kept messages in time.
PATIENT = {"poll_interval": 60.0, "restore_interval": 60.0}
CONFIG = {"task_acks_late": True, "worker_prefetch_multiplier": 1}


@pytest.fixture
def inspector(redis_url):
    """Return an Inspector of the shared server."""
    with Inspector(redis_url) as inspector:
        yield inspector


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", "solo"))
def test_a_worker_rests_while_its_queue_is_paused(
    redis_server, redis_url, site_factory, inspector, pool
):
    """During a pause the running task finishes; new and due tasks wait, and then run at once."""
    site = site_factory(redis_server, broker_transport_options=PATIENT, **CONFIG)
    site.worker(pool=pool, concurrency=1)
    running = site.send("record", 2.0)
    site.journal.wait_started(running.id)
    inspector.pause("celery")
    assert inspector.status("celery").paused
    kept = [site.send("record").id, site.send("record", countdown=0.2).id]
    site.journal.wait_finished(running.id)
    site.wait_counts(unacked=0)
    stays_true(lambda: not any(map(site.journal.runs, kept)), for_s=1.5)
    assert 2 == site.counts()["ready"] + site.counts()["delayed"]
    inspector.resume("celery")
    for task_id in kept:
        site.journal.wait_finished(task_id, timeout_s=15)
    site.settled()
    assert not inspector.status("celery").paused


def test_neither_get_nor_consume_gives_anything_out(client, inspector):
    """A paused queue gives basic_get and consumers nothing; resuming wakes a waiting consumer."""
    connection = client.connect(**PATIENT)
    taker = Taker(connection, "q")
    inspector.pause("q")
    publish(connection, "q", "kept")
    assert get(connection, "q") is None
    assert get(connection, "q", no_ack=True) is None
    assert taker.gets_nothing(for_s=1)
    inspector.resume("q")
    assert ["kept"] == taker.take_bodies(1)


def test_what_was_reserved_before_is_still_delivered(client, inspector):
    """Messages that were reserved before a pause are delivered; a requeued one stays."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=10)
    publish(connection, "q", *range(3))
    (first,) = taker.take()
    assert 3 == client.status("q").unacked
    inspector.pause("q")
    second, third = taker.take(2)
    first.ack()
    second.ack()
    third.requeue()
    assert taker.gets_nothing(for_s=1)
    assert 1 == client.status("q").ready
    inspector.resume("q")
    assert [2] == taker.take_bodies(1)


def test_many_waiting_consumers_go_on(client, inspector):
    """A resumed queue wakes one consumer, and each that leaves messages wakes the next."""
    takers = [Taker(client.connect(**PATIENT), "q", prefetch_count=1) for _ in range(3)]
    assert all(taker.gets_nothing(for_s=0.1) for taker in takers)
    inspector.pause("q")
    publish(takers[0].connection, "q", *range(3))
    assert all(taker.gets_nothing(for_s=0.1) for taker in takers)
    inspector.resume("q")
    got = [message for taker in takers for message in taker.take()]
    assert [0, 1, 2] == sorted(message.payload for message in got)
    for message in got:
        message.ack()


def test_a_pause_survives_a_restart(redis_factory):
    """A pause survives a restart, since it is stored with the queue."""
    server = redis_factory(appendonly=True)
    with Inspector(server.url()) as inspector:
        inspector._store.declare_queue("q", False, b"", {})
        inspector.pause("q")
    server.restart()
    with Inspector(server.url()) as inspector:
        assert inspector.status("q").paused


def test_a_queue_that_is_not_there(inspector):
    """The error for an unknown queue names the queue."""
    for change in (inspector.pause, inspector.resume):
        with pytest.raises(NotFound, match="no queue 'nowhere'"):
            change("nowhere")
    assert [] == inspector.queues()


def test_a_full_redis_can_be_paused(redis_factory):
    """A full Redis can be paused, since an operator may need it most then."""
    server = redis_factory()
    client = server.client()
    with Inspector(server.url()) as inspector:
        inspector._store.declare_queue("q", False, b"", {})
        client.config_set("maxmemory", 1)
        inspector.pause("q")
        inspector.resume("q")
        assert not inspector.status("q").paused
    client.close()
