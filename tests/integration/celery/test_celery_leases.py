"""A lease is kept through long tasks, cut connections and a restart of the broker.

Most tests have one worker of every pool, all at the same time, each with a queue named after its
pool. They then check each pool separately.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from reliq.admin import Inspector
from tests.support.servers import RedisServer
from tests.support.site import FAST, CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import POOLS

LATE = {"task_acks_late": True, "worker_prefetch_multiplier": 4, "task_ignore_result": True}


@pytest.fixture
def all_pools(scheme, tmp_path_factory):
    """Return a function that starts a server and a worker of every pool."""
    with ExitStack() as stack:

        def start(config=None, **server_options):
            server = RedisServer(**server_options)
            stack.callback(server.destroy)
            directory = tmp_path_factory.mktemp("pools")
            site = CelerySite(server.start(), scheme, directory, {**LATE, **(config or {})})
            stack.callback(site.close)
            site.workers = {
                pool: site.worker(pool=pool, queues=[pool], name=pool, ready=False)
                for pool in POOLS
            }
            for worker in site.workers.values():
                worker.wait_ready()
            return site

        yield start


def start_tasks(site, seconds):
    """Start a task of *seconds* in each pool, with three short ones that wait behind it."""
    tasks = {pool: [site.send("record", seconds, queue=pool).id] for pool in POOLS}
    for pool in POOLS:
        site.journal.wait_started(tasks[pool][0])
        tasks[pool] += [site.send("record", queue=pool).id for _ in range(3)]
    return tasks


def assert_each_ran_once(site, tasks):
    """Fail unless every task of each pool ran once and was acked."""
    for pool, task_ids in tasks.items():
        for task_id in task_ids:
            site.journal.wait_finished(task_id)
        site.settled(pool)
        runs = {task_id: site.journal.runs(task_id) for task_id in task_ids}
        assert (pool, runs) == (pool, dict.fromkeys(task_ids, 1))


@pytest.mark.slow
def test_long_task_runs_once(all_pools):
    """A task, and a countdown, four times longer than visibility_timeout run once."""
    site = all_pools()
    length = 4 * FAST["visibility_timeout"]
    tasks = {pool: [site.send("record", length, queue=pool).id] for pool in POOLS}
    for pool in POOLS:
        site.journal.wait_started(tasks[pool][0])
    site.worker(pool="threads", concurrency=4, queues=POOLS, name="neighbour")
    for pool in POOLS:
        tasks[pool].append(site.send("record", queue=pool, countdown=length).id)
    assert_each_ran_once(site, tasks)


@pytest.mark.slow
def test_a_short_lease_of_the_queue_is_renewed_in_time(all_pools):
    """A worker renews by the length of the queue's lease, not by its own visibility_timeout."""
    site = all_pools({"broker_transport_options": {**FAST, "visibility_timeout": 60.0}})
    with Inspector(site.broker) as inspector:
        for pool in POOLS:
            inspector.configure(pool, {"x-visibility-timeout": 1000})
    assert_each_ran_once(site, start_tasks(site, 4.0))


@pytest.mark.slow
def test_cut_connections_repeat_nothing(all_pools):
    """A late-acked task whose worker's connections are cut runs once and its ack arrives."""
    site = all_pools()
    tasks = start_tasks(site, 4.0)
    client = site.server.client()
    for _ in range(5):
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.5)  # spreads the cuts over the task; it is no wait for a condition.
    assert_each_ran_once(site, tasks)


@pytest.mark.slow
def test_restarted_broker_repeats_nothing(all_pools):
    """A late-acked task during which Redis restarts runs once and its ack arrives."""
    site = all_pools(appendonly=True)
    tasks = start_tasks(site, 5.0)
    site.server.kill()
    time.sleep(1.0)  # the length of the outage.
    site.server.start()
    assert_each_ran_once(site, tasks)


@pytest.mark.slow
def test_cancelled_task_is_redelivered(site):
    """A task that Celery cancels for a lost connection is not held forever: it runs again."""
    config = {**LATE, "worker_cancel_long_running_tasks_on_connection_loss": True}
    worker = site.worker(config=config)
    task = site.send("long_first", 60.0)
    site.journal.wait_started(task.id)
    site.server.client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    site.journal.wait_finished(task.id, timeout_s=20)
    assert site.journal.runs(task.id) == 2
    site.settled()
    assert worker.running


@pytest.mark.slow
def test_frozen_worker_loses_its_lease_and_nothing_else(site, tmp_path):
    """A frozen worker's task runs elsewhere; after the thaw it may finish, without harm."""
    frozen = site.worker(config=LATE, pool="threads")
    # Still running when the worker is thawed: it then finds its lease lost.
    enough = tmp_path / "enough"
    task = site.send("record_until", str(enough))
    site.journal.wait_started(task.id)
    frozen.freeze()
    other = site.worker(config=LATE, pool="threads")
    site.journal.wait_started(task.id, times=2)
    frozen.thaw()
    frozen.wait_log("lease lost")
    enough.touch()
    site.journal.wait_finished(task.id, times=2)
    site.settled()
    site.journal.wait_finished(site.send("record").id)
    wait_until(lambda: frozen.shut_down() == 0 and other.shut_down() == 0, what="two good ends")
    assert site.journal.runs(task.id) == 2
    site.settled()


@pytest.mark.slow
def test_a_solo_worker_acks_a_task_before_it_begins_the_next(site):
    """A solo worker acks finished tasks before a long one, though Celery acks in the next tick."""
    ids = [site.send("record_late", seconds).id for seconds in (0.05, 0.05, 5.0)]
    site.worker(pool="solo")
    wait_until(lambda: site.journal.runs(ids[-1]))
    wait_until(lambda: site.counts() == {"ready": 0, "delayed": 0, "unacked": 1, "dead": 0})
    assert set(ids[:-1]) == set(site.journal.finished())
    site.settled()
