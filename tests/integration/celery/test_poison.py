"""A task that kills its whole worker each time it runs, among many harmless tasks."""

from __future__ import annotations

import time

import pytest

from reliq.admin import Inspector
from reliq.values.values import Lease
from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until
from tests.support.workers import pools

INNOCENTS = 200
HELD = 1000
FAST = {
    "visibility_timeout": 3.0,
    "restore_interval": 0.3,
    "orphan_grace": 0.3,
    "poll_interval": 0.5,
}
LATE = {"task_acks_late": True, "task_ignore_result": True}


class Supervisor:
    """Keeps *number* workers running; a killed worker is replaced, under another name."""

    def __init__(self, site, number, **options):
        self._site = site
        self._options = options
        self._number = number
        self.deaths = 0
        self._workers = [self._start() for _ in range(number)]

    def _start(self):
        return self._site.worker(ready=False, **self._options)

    def look(self):
        """Replace the workers that have ended."""
        for i, worker in enumerate(self._workers):
            if not worker.running:
                assert worker.returncode == -9, worker.tail()
                self.deaths += 1
                self._workers[i] = self._start()

    def tails(self):
        """Return the end of every log, for a failure's message."""
        return "\n".join(worker.tail(15) for worker in self._workers)


def dead_letters(site):
    """Return the dead letters of the queue."""
    with Inspector(site.broker, transport_options=site.transport_options) as inspector:
        return inspector.dead_letters("celery")


def poison_among_innocents(site, *, limit, workers):
    """Let the poison task reach its limit; check that it is the only one."""
    with site.app.producer_or_acquire() as producer:

        def send(task, number):
            return [site.send(task, producer=producer).id for _ in range(number)]

        innocents = send("record_late", INNOCENTS // 10)
        (poison,) = send("poison_group", 1)
        innocents += send("record_late", INNOCENTS - INNOCENTS // 10)
    began = time.monotonic()
    # The first worker to start prefetches all messages.
    supervisor = Supervisor(
        site,
        workers,
        pool="prefork",
        concurrency=1,
        loglevel="WARNING",
        config={**LATE, "worker_prefetch_multiplier": INNOCENTS + 1},
    )

    def done():
        supervisor.look()
        counts = site.counts()
        return counts == {"ready": 0, "delayed": 0, "unacked": 0, "dead": 1}

    wait_until(
        done,
        timeout_s=60 + 15 * limit,
        interval_s=0.1,
        what=lambda: f"all but the poison: {site.counts()}\n{supervisor.tails()}",
    )
    took = time.monotonic() - began
    started, finished = site.journal.started(), site.journal.finished()
    again = sum(times - 1 for task, times in started.items() if task != poison)
    with Inspector(site.broker, transport_options=site.transport_options) as inspector:
        restored = inspector.status("celery").ledger["restored"]
    print(
        f"limit {limit}, {workers} workers: {took:.1f} s, {supervisor.deaths} deaths, "
        f"{again} innocent runs repeated, {restored} messages returned"
    )
    assert restored > INNOCENTS // (2 * workers), "they were not there when it killed"
    (dead_letter,) = dead_letters(site)
    assert dead_letter.reason == "delivery_limit"
    assert limit == dead_letter.count
    assert limit == started[poison]
    assert set(innocents) == set(finished)
    site.settled(dead=1)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2, pytest.param(3, marks=pytest.mark.long)])
def test_poison_meets_its_limit_alone(fresh_redis, site_factory, limit):
    """One worker, restarted after each kill, dead-letters the poison and runs all other tasks."""
    site = site_factory(fresh_redis, broker_transport_options={**FAST, "delivery_limit": limit})
    poison_among_innocents(site, limit=limit, workers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "workers"),
    [
        (3, 3),
        pytest.param(2, 3, marks=pytest.mark.long),
        pytest.param(20, 3, marks=pytest.mark.long),
        pytest.param(20, 1, marks=pytest.mark.long),
    ],
)
def test_poison_meets_any_limit_alone(fresh_redis, site_factory, limit, workers):
    """Poison meets any limit alone, also the default, and with several workers killed by turns."""
    site = site_factory(fresh_redis, broker_transport_options={**FAST, "delivery_limit": limit})
    poison_among_innocents(site, limit=limit, workers=workers)


def fail_in(site, tag_count, failures):
    """Requeue the first *tag_count* messages of the queue *failures* times."""
    with Inspector(site.broker, transport_options=site.transport_options) as inspector:
        store = inspector._store
        for _ in range(failures):
            for delivery in store.reserve("celery", tag_count, 60_000, no_ack=False).deliveries:
                assert ([], []) == store.release(
                    "celery", "nacked", [Lease(delivery.tag, delivery.token)]
                )


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads")))
def test_fresh_poison_does_not_kill_a_candidate(fresh_redis, site_factory, pool):
    """A task that has failed before, and runs beside new poison, is not dead-lettered."""
    site = site_factory(fresh_redis, broker_transport_options={**FAST, "delivery_limit": 4})
    poison_candidate = site.send("record_late", 0.5).id
    fail_in(site, 1, 2)
    (poison,) = (site.send("poison_group").id,)
    supervisor = Supervisor(
        site, 1, pool=pool, concurrency=4, loglevel="WARNING", config=dict(LATE)
    )

    def done():
        supervisor.look()
        counts = site.counts()
        return counts["dead"] == sum(counts.values())

    wait_until(
        done,
        timeout_s=90,
        interval_s=0.1,
        what=lambda: f"nothing waits or runs: {site.counts()}\n{supervisor.tails()}",
    )
    found = [
        (dead_letter.id, dead_letter.reason, dead_letter.count)
        for dead_letter in dead_letters(site)
    ]
    assert [(poison, "delivery_limit", 4)] == found
    assert {poison_candidate} == set(site.journal.finished())
    assert 4 == site.journal.runs(poison)
    site.settled(dead=1)


def seconds_until_all_is_held_again(site, *, poison_candidates):
    """Kill the worker that holds everything; return the seconds until another holds it all."""
    with site.app.producer_or_acquire() as producer:
        for _ in range(HELD):
            site.send("record_late", 60.0, producer=producer)
    with Inspector(site.broker, transport_options=site.transport_options) as inspector:
        store = inspector._store
        for _ in range(2 if poison_candidates else 0):
            taken = store.reserve("celery", 1, 60_000, no_ack=False).deliveries
            leases = [Lease(delivery.tag, delivery.token) for delivery in taken]
            assert ([], []) == store.release("celery", "nacked", leases)

        def holder():
            """Return the one consumer that holds everything, or None."""
            names = {
                name
                for name in store.consumers_of("celery")
                if len(store.leases_of("celery", f"{name}/")) == HELD
            }
            return names.pop() if names else None

        options = {
            "pool": "prefork",
            "concurrency": 1,
            "config": {**LATE, "worker_prefetch_multiplier": HELD},
        }
        victim = site.worker(**options)
        first = wait_until(
            holder,
            timeout_s=20,
            what=site.counts,
        )
        heir = site.worker(**options)
        killed = time.monotonic()
        victim.kill_group()
        wait_until(lambda: holder() not in (None, first), timeout_s=60, interval_s=0.02)
        took = time.monotonic() - killed
        counted = inspector.status("celery").ledger["restored"]
        heir.kill_group()
    print(f"candidates: {poison_candidates}; {HELD} messages held again after {took:.2f} s")
    assert HELD == counted
    assert_balanced(site.broker)
    return took


@pytest.mark.slow
def test_recovery_of_a_thousand_messages_is_not_slowed(redis_factory, site_factory):
    """One pass gives all messages of a killed, healthy worker to another.

    A candidate among them makes no difference: messages are not delivered one at a time.
    """
    took = [
        seconds_until_all_is_held_again(
            site_factory(redis_factory(), broker_transport_options=FAST),
            poison_candidates=poison_candidates,
        )
        for poison_candidates in (False, True)
    ]
    without, beside = took
    # One pass is a part of either time; a pass for each message would be a thousand of them.
    assert beside < 5 * without
