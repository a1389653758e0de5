"""Invalid messages, a frozen broker, and short-lived children."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from reliq.admin import Inspector
from tests.support.waiting import wait_until
from tests.support.workers import POOLS, TASKS_APP

from ..kombu.test_lost_connections import idle_for_long

TICKING_APP = "tests.integration.apps.ticking"
LATE = {"task_acks_late": True, "task_ignore_result": True}


def spoil_envelope(site, change):
    """Publish a task and change the bytes that the broker stores for it."""
    client = site.server.client()
    key = "reliq:{celery}:messages"
    before = set(client.hkeys(key))
    site.send("record")
    (tag,) = set(client.hkeys(key)) - before
    client.hset(key, tag, change(client.hget(key, tag)))


def not_ours(site):
    """Leave a message in the queue whose envelope was written by another program."""
    spoil_envelope(site, lambda _: b'{"body": "W10=", "content-type": "application/json"}')


def truncated(site):
    """Leave a truncated message in the queue."""
    spoil_envelope(site, lambda envelope: envelope[: len(envelope) // 2])


def undecodable(site):
    """Leave a message in the queue whose body contradicts its content type."""
    with site.app.producer_or_acquire() as producer:
        producer.publish(
            b'[[], {"unfinished": ',
            routing_key="celery",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": "record", "id": "undecodable"},
        )


def unknown_content(site):
    """Leave a message in the queue with a content type that no worker accepts."""
    with site.app.producer_or_acquire() as producer:
        producer.publish(
            b"\x80\x04.",
            routing_key="celery",
            content_type="application/x-python-serialize",
            content_encoding="binary",
            headers={"task": "record", "id": "unknown"},
        )


@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent"])
def test_bad_messages_are_set_aside(site, pool):
    """Undecodable messages become dead letters with a reason; the next messages run."""
    bad = (not_ours, truncated, undecodable, unknown_content)
    for spoil in bad:
        spoil(site)
    good = site.send("record")
    worker = site.worker(pool=pool, config=LATE)
    site.journal.wait_finished(good.id)
    site.journal.wait_finished(site.send("record").id)
    site.settled(dead=len(bad))
    with Inspector(site.broker) as inspector:
        dead_letters = inspector.dead_letters("celery", 10)
    assert all(dead_letter.reason and dead_letter.error for dead_letter in dead_letters)
    assert worker.running


@pytest.fixture
def all_pools(fresh_redis, site_factory):
    """Return a function that starts a worker of every pool, with a queue named after the pool."""

    def start(app=TASKS_APP, **config):
        site = site_factory(fresh_redis, **LATE, **config)
        workers = [
            site.worker(app=app, pool=pool, queues=[pool], name=pool, ready=False) for pool in POOLS
        ]
        for worker in workers:
            worker.wait_ready()
        return site

    return start


@pytest.mark.slow
def test_frozen_broker_does_not_stop_the_loop(all_pools):
    """The timers of idle workers run on while Redis is frozen; afterwards all workers run tasks."""
    site = all_pools(app=TICKING_APP)
    for pool in POOLS:
        site.journal.wait_finished(site.send("record", queue=pool).id)
        site.journal.wait("tick", pool)
    site.server.freeze()
    frozen_at = time.monotonic()
    time.sleep(4)  # longer than a worker's heartbeat event, shorter than socket_timeout.
    thawed_at = time.monotonic()
    site.server.thaw()
    gaps = {}
    for pool in POOLS:
        ticks = [entry.at for entry in site.journal.entries("tick", pool)]
        during = [frozen_at, *(at for at in ticks if frozen_at < at < thawed_at), thawed_at]
        gaps[pool] = max(after - before for before, after in pairwise(during))
    print(gaps)
    assert {pool for pool, gap in gaps.items() if gap >= 2} == set()
    for pool in POOLS:
        site.journal.wait_finished(site.send("record", queue=pool).id)
        site.settled(pool)


@pytest.mark.slow
@pytest.mark.parametrize(("lease_s", "frozen_s"), [(5.0, 2.5), (4.0, 5.5)])
def test_workers_outlive_a_long_freeze(all_pools, lease_s, frozen_s):
    """Workers reconnect after a freeze of longer than socket_timeout, and no task runs twice.

    This holds even if every lease has expired meanwhile.
    """
    options = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "restore_interval": 0.5}
    site = all_pools(broker_transport_options=options | {"visibility_timeout": lease_s})
    running = [site.send("record", frozen_s + 0.5, queue=pool).id for pool in POOLS]
    for task_id in running:
        site.journal.wait_started(task_id)
    site.server.freeze()
    time.sleep(frozen_s)
    site.server.thaw()
    for pool, task_id in zip(POOLS, running, strict=True):
        site.journal.wait_finished(task_id)
        site.journal.wait_finished(site.send("record", queue=pool).id, timeout_s=20)
        site.settled(pool)
        runs = site.journal.runs(task_id)
        assert (pool, runs) == (pool, 1), site.journal.entries(key=task_id)


def run_in_short_lived_children(site, tasks):
    """Run *tasks* tasks in children that end after one task each."""
    worker = site.worker(
        concurrency=4,
        arguments=["--max-tasks-per-child", "1"],
        # From Python 3.12 on, a fork beside threads causes a warning, which the log then shows.
        # Celery's own deprecations are not tested here.
        env={"PYTHONWARNINGS": "always::DeprecationWarning:billiard.popen_fork,error:::reliq"},
    )
    ids = [site.send("record").id for _ in range(tasks)]
    wait_until(
        lambda: len(site.journal.finished()) == tasks,
        timeout_s=200 + tasks / 5,
        interval_s=0.2,
        what=lambda: f"{len(site.journal.finished())} of {tasks}:\n{worker.tail()}",
    )
    threads = list(Path(f"/proc/{worker.pid}/task").iterdir())
    started = site.journal.started()
    assert dict.fromkeys(ids, 1) == started
    assert len({entry.pid for entry in site.journal.entries("started")}) == tasks
    assert len(threads) == 1  # more threads of reliq in the parent would cause that warning.
    assert "multi-threaded" not in worker.log()
    assert "DeprecationWarning" not in worker.log()
    site.settled()
    assert worker.shut_down() == 0


@pytest.mark.slow
def test_children_of_one_task_each(site):
    """Each of 40 tasks runs in a new child without a deadlock; the parent has one thread."""
    run_in_short_lived_children(site, 40)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("tasks", [150, 2000])
def test_many_children_of_one_task_each(site, tasks):
    """Each of many tasks runs in a new child without a deadlock; the parent has one thread."""
    run_in_short_lived_children(site, tasks)


def test_unregistered_task_is_not_fatal(site):
    """A task unknown to the worker is rejected by Celery, as a dead letter; the next task runs."""
    worker = site.worker(pool="threads")
    site.send("no.such.task")
    site.journal.wait_finished(site.send("record").id)
    worker.wait_log("unregistered task")
    site.settled(dead=1)


@pytest.mark.slow
def test_remote_control_over_a_connection_that_was_cut(redis_server, site):
    """A remote control call over a connection of the pool that was just cut gets its answers."""
    site.worker(pool="threads")
    call = site.app.control.inspect(timeout=1).ping
    assert 1 == len(call())
    for _ in range(3):
        redis_server.client().client_kill_filter(_type="normal", skipme=True)
        idle_for_long()
        assert 1 == len(call())
