"""Warm, soft and cold shutdown: running tasks finish or return, and waiting tasks return."""

from __future__ import annotations

import signal

import pytest

from tests.support.site import FAST
from tests.support.waiting import wait_until
from tests.support.workers import POOLS, pools

LATE = {"task_acks_late": True, "task_ignore_result": True, "worker_prefetch_multiplier": 4}


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_warm_shutdown_finishes_and_gives_back(site, pool):
    """Running tasks finish and are acked, prefetched ones are released, and none runs twice."""
    # A solo worker learns of the shutdown between two tasks, so the first must still be running
    # then. A prefork worker releases the tasks that have not begun while others run.
    running, seconds = {"solo": (1, 4.0), "prefork": (2, 5.0)}.get(pool, (2, 2.5))
    ids = [site.send("record", seconds).id for _ in range(10)]
    worker = site.worker(pool=pool, concurrency=2, config=LATE)
    wait_until(lambda: len(site.journal.started()) == running, what="running tasks")
    site.wait_counts(unacked=8)
    worker.terminate()
    if pool == "prefork":
        # At once: the running tasks have most of their time before them.
        site.wait_counts(ready=8, unacked=2)
        assert site.journal.finished().total() == 0
    assert worker.wait() == 0
    ran = len(site.journal.started())
    assert site.journal.started() == site.journal.finished()
    site.settled(ready=len(ids) - ran)
    # A threads pool runs all its tasks before it ends. In gevent Celery waits with one message for
    # a place in its pool, and takes one more as it ends.
    assert running <= ran <= {"threads": 8, "gevent": 4}.get(pool, running)
    site.worker(pool="gevent", concurrency=10, config=LATE)
    for task_id in ids:
        site.journal.wait_finished(task_id)
    assert dict.fromkeys(ids, 1) == site.journal.started()
    site.settled()


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_idle_worker_ends_at_once(site, pool):
    """An idle worker ends a warm shutdown without waiting for a notifier or a thread."""
    worker = site.worker(pool=pool, arguments=["--without-gossip"])
    site.journal.wait_finished(site.send("record").id)
    assert worker.shut_down(timeout_s=6) == 0
    site.settled()


@pytest.mark.slow
def test_early_acked_prefetched_tasks_go_back_too(site):
    """With early acks a warm shutdown loses no prefetched task."""
    config = {"task_ignore_result": True, "worker_prefetch_multiplier": 4}
    worker = site.worker(concurrency=2, config=config)
    ids = [site.send("record", 0.7).id for _ in range(10)]
    wait_until(lambda: len(site.journal.started()) == 2, what="running tasks")
    assert worker.shut_down() == 0
    assert site.journal.started() == site.journal.finished()
    site.worker(pool="gevent", concurrency=10, config=config)
    for task_id in ids:
        site.journal.wait_finished(task_id)
    assert dict.fromkeys(ids, 1) == site.journal.started()
    site.settled()


@pytest.mark.slow
def test_eta_tasks_go_back(redis_server, redis_url, site_factory):
    """A warm shutdown releases a task that a worker holds for its ETA; the task runs when due."""
    options = {**FAST, "native_delay": False}
    site = site_factory(redis_server, broker_transport_options=options)
    worker = site.worker(config=LATE)
    task = site.send("record", countdown=4)
    worker.wait_log("received")
    assert worker.shut_down() == 0
    assert site.journal.runs(task.id) == 0
    site.wait_counts(unacked=0)
    site.worker(config=LATE, pool="threads")
    site.journal.wait_finished(task.id)
    assert site.journal.runs(task.id) == 1
    site.settled()


@pytest.mark.slow
def test_cold_shutdown_gives_back_what_runs(site):
    """SIGQUIT abandons running late-acked tasks: they return to the queue, and run again.

    This is so in prefork only: Celery 5.7 cannot end the tasks of a threads pool, and acks those of
    a gevent pool as it kills them.
    """
    worker = site.worker(concurrency=2, config=LATE)
    for _ in range(6):
        site.send("long_first", 60.0)
    wait_until(lambda: len(site.journal.started()) == 2, what="running tasks")
    # Celery cancels the tasks that it knows to be running, and waits for the others.
    inspect = site.app.control.inspect([worker.name], timeout=2)
    wait_until(lambda: len((inspect.active() or {}).get(worker.name, ())) == 2)
    worker.quit()
    worker.wait()
    running = set(site.journal.started())
    site.settled(ready=6)
    site.worker(pool="threads", concurrency=6, config=LATE)
    for task_id in running:
        site.journal.wait_finished(task_id)
    assert {site.journal.runs(task_id) for task_id in running} == {2}


@pytest.mark.slow
def test_soft_shutdown_waits_a_while(site):
    """A soft shutdown lets a short task finish, and returns a long one to the queue."""
    config = {**LATE, "worker_soft_shutdown_timeout": 2.0}
    worker = site.worker(concurrency=2, config=config)
    long = site.send("long_first", 60.0).id
    site.journal.wait_started(long)
    # Celery cancels only tasks whose begin its main process knows, so it takes another one first.
    short = site.send("record_late", 1.0).id
    site.journal.wait_started(short)
    worker.signal(signal.SIGQUIT)
    worker.wait()
    assert site.journal.finished()[short] == 1
    assert site.journal.finished()[long] == 0
    site.settled(ready=1)
    site.worker(pool="threads", config=LATE)
    site.journal.wait_finished(long)
    assert site.journal.runs(short) == 1
    site.settled()


@pytest.mark.slow
@pytest.mark.parametrize("soft_s", [0, 2])
@pytest.mark.parametrize("pool", pools("gevent", of=("gevent", "threads", "prefork")))
def test_cold_shutdown_of_a_full_pool_blames_no_message(site, pool, soft_s):
    """A message that waits for a place in the pool at a cold shutdown returns, uncounted.

    In gevent, Celery's signal handler fails in the hub, and its error arrives in the delivery.
    """
    config = {**LATE, "worker_soft_shutdown_timeout": soft_s}
    worker = site.worker(pool=pool, concurrency=2, config=config, env={"REMAP_SIGTERM": "SIGQUIT"})
    ids = [site.send("record", 6.0).id for _ in range(6)]
    wait_until(lambda: len(site.journal.started()) == 2, what="running tasks")
    wait_until(lambda: site.counts()["unacked"] >= 3, what="a message that waits for a place")
    worker.terminate()
    worker.wait(60)
    site.wait_counts(unacked=0, dead=0)
    ran = set(site.journal.finished())
    site.worker(pool="gevent", concurrency=10, config=LATE)
    for task_id in set(ids) - ran:
        site.journal.wait_finished(task_id)
    site.settled()
