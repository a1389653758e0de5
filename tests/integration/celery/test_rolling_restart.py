"""Workers are replaced one after the other under load."""

from __future__ import annotations

from collections import Counter

import pytest

from reliq.admin import Inspector
from reliq.store.urls import connect
from tests.support.load import Load
from tests.support.waiting import wait_until

# Only an orderly shutdown returns a message within the test.
OPTIONS = {
    "visibility_timeout": 900.0,
    "restore_interval": 1.0,
    "orphan_grace": 900.0,
    "poll_interval": 1.0,
}
CONFIG = {
    "task_acks_late": True,
    "task_ignore_result": True,
    "result_backend": None,
    "worker_prefetch_multiplier": 4,
    "broker_transport_options": OPTIONS,
}
POOLS = ("prefork", "threads", "gevent", "solo")


@pytest.mark.slow
@pytest.mark.parametrize("acks", ["late", "early"])
def test_a_rolling_restart(fresh_redis, site_factory, acks):
    """A worker of each pool gets SIGTERM in turn under load: no task is repeated, lost or late."""
    config = {**CONFIG, "task_acks_late": acks == "late"}
    site = site_factory(fresh_redis, **config)

    def start(number):
        return site.worker(pool=POOLS[number], concurrency=2, ready=False, loglevel="WARNING")

    workers = [start(number) for number in range(len(POOLS))]

    def registered():
        with Inspector(site.broker, OPTIONS) as inspector:
            return {consumer.pid: consumer.id for consumer in inspector.consumers()}

    pids = {worker.pid for worker in workers}
    wait_until(lambda: pids <= set(registered()), timeout_s=120, what="all consumers")
    load = Load(site, ["celery", "celery"])
    store = connect(site.broker, OPTIONS, "test")
    try:
        load.wait(100)
        for number, worker in enumerate(workers):
            consumer = registered()[worker.pid]
            assert worker.shut_down(60) == 0
            # At once: other workers already have the messages that it did not run.
            left = store.leases_of("celery", f"{consumer}/")
            assert [] == left, f"{number} ({worker.pool})"
            start(number)
            load.wait(50)
    finally:
        confirmed = load.stop()
        store.close()
    site.settled(timeout_s=60)
    # An early-acked task leaves the queue as soon as it begins.
    wait_until(lambda: len(site.journal.finished()) >= len(confirmed), what="the last to end")
    started, finished = site.journal.started(), site.journal.finished()
    print(f"{len(confirmed)} tasks, times started {dict(Counter(started.values()))}")
    assert dict.fromkeys(confirmed, 1) == started
    assert started == finished
