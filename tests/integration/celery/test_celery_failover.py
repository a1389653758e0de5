"""Two brokers: workers and publishers switch to the second if the first dies, and return later."""

from __future__ import annotations

import signal
import time

import pytest

from reliq.admin import Inspector
from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until
from tests.support.workers import pools

FAST = {
    "visibility_timeout": 2.0,
    "restore_interval": 0.5,
    "orphan_grace": 0.5,
    "poll_interval": 1.0,
    "probe_interval": 0.5,
}
SETTINGS = {
    "task_acks_late": True,
    "task_ignore_result": True,
    "result_backend": None,
    "broker_failover_strategy": "primary",
    "task_publish_retry_policy": {"max_retries": 20, "interval_start": 0, "interval_max": 0.2},
}


class Brokers:
    """Brokers A and B, both with AOF, and an application that lists them in that order."""

    def __init__(self, redis_factory, site_factory, **options):
        self.a, self.b = redis_factory(appendonly=True), redis_factory(appendonly=True)
        self.site = site_factory(self.a, **SETTINGS, broker_transport_options={**FAST, **options})
        self.site.broker = ";".join(server.url("reliq") for server in (self.a, self.b))

    def counts(self, server, queue="celery"):
        """Return the message counts of *queue* at one of the brokers, without zeros."""
        with Inspector(server.url("reliq")) as inspector:
            if queue not in inspector.queues():
                return {}
            status = inspector.status(queue)
        places = ("ready", "delayed", "unacked", "dead")
        return {place: n for place in places if (n := getattr(status, place))}

    def all_done(self, ids, timeout_s=40):
        """Wait until every task of *ids* has run; fail if one ran twice."""
        missing = set(ids)

        def done():
            missing.difference_update(self.site.journal.finished())
            return not missing

        wait_until(done, timeout_s=timeout_s, what=lambda: f"{len(missing)} tasks of {len(ids)}")
        started = self.site.journal.started()
        assert dict.fromkeys(ids, 1) == {key: started[key] for key in ids}

    def send(self, count, task="record_late", *args, **options):
        """Publish *count* tasks; return their ids."""
        return [self.site.send(task, *args, **options).id for _ in range(count)]


@pytest.fixture
def brokers(redis_factory, site_factory):
    """Return two brokers; the ledgers of both are audited at the end."""
    brokers = Brokers(redis_factory, site_factory)
    yield brokers
    brokers.site.close()
    for server in (brokers.a, brokers.b):
        assert_balanced(server.url("reliq"))


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", "gevent"))
def test_there_and_back_again(brokers, pool):
    """Tasks sent before, during and after an outage of A run once each, without intervention."""
    worker = brokers.site.worker(pool=pool, concurrency=2)
    ids = brokers.send(10)
    brokers.all_done(ids)
    brokers.a.kill()
    began = time.monotonic()
    away = brokers.send(10)
    brokers.all_done(away)
    assert time.monotonic() - began < 20  # five on a quiet machine, with default timeouts
    later = brokers.send(3, countdown=6)  # delayed on B when A comes back
    assert {"delayed": 3} == brokers.counts(brokers.b)
    brokers.a.start()
    wait_until(lambda: "answers again" in worker.log(), what=worker.tail)
    home = brokers.send(5)
    worker.wait_log("messages of 'celery' from", timeout_s=40)
    brokers.all_done([*later, *home])
    assert {} == brokers.counts(brokers.b)
    wait_until(lambda: brokers.counts(brokers.a) == {})


@pytest.mark.slow
def test_a_task_that_runs_while_its_broker_is_away_runs_once(brokers):
    """A process keeps a task's ack, even on another broker, until the task's own broker is back."""
    worker = brokers.site.worker(pool="prefork", concurrency=2)
    (long,) = brokers.send(1, "record_late", 4)
    wait_until(lambda: brokers.site.journal.runs(long))
    brokers.a.kill()
    others = brokers.send(5)
    brokers.all_done(others)
    brokers.all_done([long])
    brokers.a.start()
    wait_until(lambda: brokers.counts(brokers.a) == {}, timeout_s=30, what=worker.tail)
    time.sleep(3 * FAST["restore_interval"])  # time for passes, which could restore it
    brokers.all_done([long])


def test_a_publisher_alone_goes_home(brokers):
    """A publisher without consumers returns to A without an error; its next message is on A."""
    brokers.send(1)
    brokers.a.kill()
    brokers.send(1)
    assert {"ready": 1} == brokers.counts(brokers.b)
    brokers.a.start()

    def at_home():
        before = brokers.counts(brokers.a)
        brokers.send(1)
        return brokers.counts(brokers.a) != before

    wait_until(at_home, interval_s=0.1)
    worker = brokers.site.worker(pool="solo")
    wait_until(
        lambda: brokers.counts(brokers.a) == brokers.counts(brokers.b) == {},
        timeout_s=60,
        what=worker.tail,
    )


def test_a_new_process_finds_the_others(brokers):
    """A worker that starts while others are on B runs tasks of either broker."""
    worker = brokers.site.worker(pool="prefork", concurrency=2)
    brokers.a.kill()
    ids = brokers.send(5)
    brokers.all_done(ids)
    second = brokers.site.worker(pool="prefork", concurrency=1)
    brokers.a.start()
    ids = [task for _ in range(20) for task in brokers.send(1, "record_late", 0.1)]
    brokers.all_done(ids)
    for process in (worker, second):
        wait_until(lambda process=process: "answers again" in process.log(), what=process.tail)


def test_without_fail_back(redis_factory, site_factory):
    """With failback=False a process that switched to B stays there until B fails."""
    brokers = Brokers(redis_factory, site_factory, failback=False)
    worker = brokers.site.worker(pool="solo")
    brokers.a.kill()
    brokers.all_done(brokers.send(2))
    brokers.a.start()
    time.sleep(4 * FAST["probe_interval"])
    brokers.all_done(brokers.send(2))
    assert "answers again" not in worker.log()
    brokers.b.kill()
    brokers.all_done(brokers.send(2))


def test_a_broker_that_is_no_primary_is_passed_over(brokers, redis_factory):
    """A broker that answers but refuses writes is not used until it accepts them again."""
    elsewhere = redis_factory()
    brokers.a.follow(elsewhere)
    worker = brokers.site.worker(pool="prefork", ready=False)
    ids = brokers.send(3)
    brokers.all_done(ids)
    assert worker.running
    assert {} == brokers.counts(brokers.b)
    brokers.a.promote()
    wait_until(lambda: "answers again" in worker.log(), what=worker.tail)
    brokers.all_done(brokers.send(3))
    assert worker.running
    worker.signal(signal.SIGTERM)
    assert 0 == worker.wait(30)
