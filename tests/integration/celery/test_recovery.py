"""SIGKILL at any moment loses no task."""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest

from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until

LATE = {"task_acks_late": True, "task_ignore_result": True, "worker_prefetch_multiplier": 16}


def kill_again_and_again(site, *, pool, concurrency, tasks, kills):
    """Run *tasks* tasks while workers are SIGKILLed; return how often each was started.

    A kill does not count if the worker has run everything before: then more tasks follow, and one
    more kill.
    """
    seed = int(os.environ.get("RELIQ_TEST_SEED", random.randrange(2**32)))
    print(f"RELIQ_TEST_SEED={seed}")
    chance = random.Random(seed)
    ids: list[str] = []

    def publish(count: int) -> None:
        with site.app.producer_or_acquire() as producer:
            ids.extend(site.send("record_late", producer=producer).id for _ in range(count))

    publish(tasks)
    options = {"pool": pool, "concurrency": concurrency, "config": LATE, "loglevel": "WARNING"}
    journal = site.journal
    killed = 0
    while killed < kills:
        # The tasks that are left at its start are shared out over the remaining kills.
        done = len(journal.finished())
        share = (len(ids) - done) / (kills - killed + 1)
        worker = site.worker(**options, ready=False)
        target = done + chance.uniform(0.2, 1.0) * share
        wait_until(
            lambda: len(journal.finished()) >= target,  # noqa: B023 - called before it changes.
            interval_s=chance.uniform(0.001, 0.05),
            timeout_s=60,
            what=lambda: f"{target:.0f} finished tasks before it is killed:\n{worker.tail()}",  # noqa: B023
        )
        if chance.random() < 0.5:
            worker.kill_group()
        else:
            worker.kill()  # its children find out by themselves.
        if len(journal.finished()) < len(ids):
            killed += 1
        else:
            publish(tasks // kills)
    last = site.worker(**options, ready=False)
    missing = set(ids)

    def all_ran() -> bool:
        missing.difference_update(journal.finished())
        return not missing

    wait_until(
        all_ran, timeout_s=120, interval_s=0.3, what=lambda: f"{len(missing)} tasks\n{last.tail()}"
    )
    site.settled(timeout_s=30)
    started = journal.started()
    spread = Counter(started.values())
    print(f"{kills} kills, {len(ids)} tasks, times started: {dict(sorted(spread.items()))}")
    assert set(started) == set(ids)
    return started


@pytest.mark.slow
def test_few_kills_lose_nothing(fresh_redis, site_factory):
    """A saturated worker is SIGKILLed twice during 600 tasks, and every task runs."""
    site = site_factory(fresh_redis)
    kill_again_and_again(site, pool="gevent", concurrency=20, tasks=600, kills=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "concurrency", "kills", "each"),
    [
        ("prefork", 4, 4, 500),
        pytest.param("threads", 4, 8, 1000, marks=pytest.mark.long),
        pytest.param("gevent", 20, 8, 1000, marks=pytest.mark.long),
        pytest.param("prefork", 4, 20, 1000, marks=pytest.mark.long),
        pytest.param("threads", 4, 20, 1000, marks=pytest.mark.long),
        pytest.param("gevent", 20, 20, 1000, marks=pytest.mark.long),
    ],
)
def test_many_kills_lose_nothing(fresh_redis, site_factory, pool, concurrency, kills, each):
    """Saturated workers are SIGKILLed *kills* times, after about *each* tasks; every task runs."""
    site = site_factory(fresh_redis)
    tasks = kills * each
    kill_again_and_again(site, pool=pool, concurrency=concurrency, tasks=tasks, kills=kills)


@pytest.mark.slow
def test_killed_workers_tasks_run_again_soon(fresh_redis, site_factory):
    """Tasks of a SIGKILLed worker run elsewhere long before their leases expire (60 s).

    test_celery_dead_consumers measures the time: ten seconds with default options.
    """
    site = site_factory(fresh_redis, broker_transport_options={})
    killed = site.worker(config=LATE)
    tasks = [site.send("long_first", 60.0).id for _ in range(4)]
    site.journal.wait_started(tasks[0])
    site.wait_counts(unacked=4)
    site.worker(config=LATE, pool="threads", concurrency=4)
    killed_at = time.monotonic()
    killed.kill_group()
    again = site.journal.wait_started(tasks[0], times=2)
    rest = [site.journal.wait_started(task_id) for task_id in tasks[1:]]
    assert max(start.at for start in (again, *rest)) - killed_at < 30
    site.journal.wait_finished(tasks[0])
    assert_balanced(site.broker)


def test_a_gevent_worker_goes_on_while_it_waits_for_the_broker(fresh_redis, site_factory):
    """While Celery waits two seconds before it reconnects, the other greenlets run."""
    site = site_factory(fresh_redis)
    worker = site.worker(pool="gevent", concurrency=10, config=LATE)
    task = site.send("tick", 60.0).id
    site.journal.wait_started(task)
    fresh_redis.kill()
    worker.wait_log("Trying again in 2.00 seconds")
    before = len(site.journal.entries("tick", task))
    worker.wait_log("Trying again in 4.00 seconds")
    assert len(site.journal.entries("tick", task)) - before >= 5
    worker.kill_group()


@pytest.mark.slow
def test_poison_task_ends_in_the_dead_letters_alone(fresh_redis, site_factory):
    """A task that kills every worker becomes a dead letter at its limit; its neighbours all run."""
    options = {
        "visibility_timeout": 1.0,
        "restore_interval": 0.2,
        "orphan_grace": 0.2,
        "poll_interval": 0.5,
        "delivery_limit": 3,
    }
    site = site_factory(fresh_redis, broker_transport_options=options)
    good = [site.send("record_late").id for _ in range(5)]
    bad = site.send("poison").id
    good += [site.send("record_late").id for _ in range(5)]
    for number in range(1, 4):
        worker = site.worker(pool="solo", config=LATE, ready=False)
        site.journal.wait_started(bad, times=number)
        assert worker.wait() == -9
    site.worker(pool="solo", config=LATE)
    for task_id in good:
        site.journal.wait_finished(task_id)
    site.settled(dead=1)
    assert site.journal.runs(bad) == 3
