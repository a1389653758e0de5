"""Bad messages, a frozen broker, and children that come and go."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.audits import is_reliq
from tests.support.waiting import wait_until
from tests.support.workers import POOLS

TICKING_APP = "tests.integration.apps.ticking"
LATE = {"task_acks_late": True, "task_ignore_result": True}


def spoil_envelope(site, change):
    """Change, in the broker, the stored bytes of the only message that waits."""
    client = site.server.client()
    key = "reliq:{celery}:messages"
    (tag,) = client.hkeys(key)
    client.hset(key, tag, change(client.hget(key, tag)))


def not_ours(site):
    """Leave a message in the queue whose envelope something else has written."""
    site.send("record")
    spoil_envelope(site, lambda _: b'{"body": "W10=", "content-type": "application/json"}')


def truncated(site):
    """Leave a message in the queue that was cut in two."""
    site.send("record")
    spoil_envelope(site, lambda envelope: envelope[: len(envelope) // 2])


def undecodable(site):
    """Leave a message in the queue whose body is not what its content type says."""
    with site.app.producer_or_acquire() as producer:
        producer.publish(
            b'[[], {"unfinished": ',
            routing_key="celery",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": "record", "id": "undecodable"},
        )


def unknown_content(site):
    """Leave a message in the queue of a content type that nobody here accepts."""
    with site.app.producer_or_acquire() as producer:
        producer.publish(
            b"\x80\x04.",
            routing_key="celery",
            content_type="application/x-python-serialize",
            content_encoding="binary",
            headers={"task": "record", "id": "unknown"},
        )


@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent"])
@pytest.mark.parametrize("spoil", [not_ours, truncated, undecodable])
def test_bad_message_is_set_aside(site, pool, spoil):
    """A message nobody can read goes to the dead letters with its reason; the next one runs."""
    site.app.amqp.queues["celery"](site.app.pool.connection.default_channel).declare()
    spoil(site)
    good = site.send("record")
    worker = site.worker(pool=pool, config=LATE)
    site.journal.wait_finished(good.id)
    site.journal.wait_finished(site.send("record").id)
    site.settled(dead=1)
    from reliq.admin import Inspector

    with Inspector(site.broker) as inspector:
        (letter,) = inspector.dead_letters("celery", 10)
    assert letter.reason
    assert worker.running


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_frozen_broker_does_not_stop_the_loop(fresh_redis, site_factory, pool):
    """While Redis is frozen the timers of an idle worker's loop run on; thawed, it works."""
    site = site_factory(fresh_redis)
    site.worker(app=TICKING_APP, pool=pool, config=LATE)
    site.journal.wait_finished(site.send("record").id)
    site.journal.wait("tick")
    fresh_redis.freeze()
    frozen_at = time.monotonic()
    time.sleep(5)  # longer than a worker's heartbeat event, shorter than socket_timeout.
    thawed_at = time.monotonic()
    fresh_redis.thaw()
    ticks = [entry.at for entry in site.journal.entries("tick")]
    during = [frozen_at, *(at for at in ticks if frozen_at < at < thawed_at), thawed_at]
    gaps = [after - before for before, after in pairwise(during)]
    assert max(gaps) < 2
    site.journal.wait_finished(site.send("record").id)
    site.settled()


@pytest.mark.parametrize("pool", POOLS)
def test_worker_outlives_a_long_freeze(fresh_redis, site_factory, pool):
    """Redis frozen for longer than socket_timeout: the worker reconnects and works on."""
    options = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "visibility_timeout": 5.0}
    site = site_factory(fresh_redis, broker_transport_options=options)
    worker = site.worker(pool=pool, config=LATE)
    running = site.send("record", 3.0)
    site.journal.wait_started(running.id)
    fresh_redis.freeze()
    time.sleep(2.5)
    fresh_redis.thaw()
    site.journal.wait_finished(running.id)
    site.journal.wait_finished(site.send("record").id, timeout_s=20)
    site.settled()
    assert site.journal.runs(running.id) == 1
    assert worker.running


def run_in_short_lived_children(site, tasks):
    """Run tasks in children that end after one each."""
    worker = site.worker(
        concurrency=2,
        arguments=["--max-tasks-per-child", "1"],
        # Celery's own deprecations are not what is tested here.
        env={"PYTHONWARNINGS": "error::DeprecationWarning:reliq,error::ResourceWarning:reliq"},
    )
    ids = [site.send("record").id for _ in range(tasks)]
    wait_until(
        lambda: len(site.journal.finished()) == tasks,
        timeout_s=60 + tasks / 10,
        interval_s=0.2,
        what=lambda: f"{len(site.journal.finished())} of {tasks}:\n{worker.tail()}",
    )
    threads = list(Path(f"/proc/{worker.pid}/task").iterdir())
    started = site.journal.started()
    assert dict.fromkeys(ids, 1) == started
    assert len({entry.pid for entry in site.journal.entries("started")}) == tasks
    assert len(threads) == 1  # what a fork would warn of: threads of ours in the parent.
    assert "multi-threaded" not in worker.log()
    assert "Warning" not in worker.log()
    site.settled()
    assert worker.shut_down() == 0


def test_children_of_one_task_each(site):
    """A hundred tasks, each in a new child: none deadlocks, the parent has one thread."""
    run_in_short_lived_children(site, 100)


@pytest.mark.slow
def test_many_children_of_one_task_each(site):
    """2 000 tasks, each in a new child: none deadlocks, the parent has one thread."""
    run_in_short_lived_children(site, 2000)


def test_unregistered_task_is_not_fatal(site):
    """A task this worker does not know is discarded as Celery does; the next one runs."""
    worker = site.worker(pool="threads")
    site.send("no.such.task")
    site.journal.wait_finished(site.send("record").id)
    worker.wait_log("unregistered task")
    site.settled()
    assert is_reliq(site.broker) or worker.running
