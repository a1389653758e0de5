"""Dead consumers, and consumers that only seem dead: which are detected, and how soon."""

from __future__ import annotations

import socket
import time
from statistics import quantiles

import pytest

import reliq
from reliq.admin import Inspector, acl_rule
from tests.support.audits import assert_balanced
from tests.support.blackhole import Blackhole
from tests.support.waiting import stays_true, wait_until
from tests.support.workers import pools

LATE = {
    "task_acks_late": True,
    "task_ignore_result": True,
    "result_backend": None,
    "worker_prefetch_multiplier": 1,
}


def consumers_of(site):
    """Return the consumers in the broker's register, by process id."""
    with Inspector(site.broker, site.transport_options) as inspector:
        return {consumer.pid: consumer for consumer in inspector.consumers()}


@pytest.mark.slow
def test_consumers_are_known_and_ghosts_disappear(site_factory, fresh_redis):
    """The register lists each consumer with its data and leases, until it ends or is killed."""
    site = site_factory(fresh_redis, **LATE)
    began = time.time()
    killed = site.worker(pool="prefork", concurrency=2)
    other = site.worker(pool="threads", queues=["celery", "more"])
    wait_until(lambda: {killed.pid, other.pid} == set(consumers_of(site)))
    task = site.send("record", 6.0, queue="more")
    site.journal.wait_started(task.id)
    wait_until(lambda: consumers_of(site)[other.pid].held == 1, what="what it holds")
    known = consumers_of(site)
    assert (socket.gethostname(), reliq.__version__, True) == (
        known[other.pid].host,
        known[other.pid].version,
        known[other.pid].connected,
    )
    assert {"celery", "more"} <= set(known[other.pid].queues)
    assert "celery" in known[killed.pid].queues
    for consumer in known.values():
        assert began - 5 <= consumer.started_ms / 1000 <= consumer.seen_ms / 1000 <= time.time()
    killed.kill_group()
    wait_until(lambda: {other.pid} == set(consumers_of(site)), what="no ghost")
    site.journal.wait_finished(task.id)
    assert other.shut_down() == 0
    wait_until(lambda: {} == consumers_of(site), what="nobody")
    site.settled("more")


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads")))
def test_a_blip_causes_no_redelivery(redis_factory, site_factory, pool):
    """A worker that is unreachable for less than orphan_grace keeps its messages.

    Celery's pause between its second and third try alone is longer than the rest of that time.
    """
    runs = run_through_a_blip(site_factory(redis_factory(), **LATE, **GRACE), pool, 3.5)
    assert 1 == runs


@pytest.mark.slow
def test_a_long_absence_is_taken_for_death(redis_factory, site_factory):
    """A worker that is unreachable for longer than orphan_grace counts as dead.

    Its task runs elsewhere before its lease ends.
    """
    runs = run_through_a_blip(site_factory(redis_factory(), **LATE, **GRACE), "threads", 9.0)
    assert 2 == runs


GRACE = {
    "broker_transport_options": {
        "visibility_timeout": 60.0,
        "restore_interval": 1.0,
        "orphan_grace": 5.0,
        "poll_interval": 1.0,
    }
}


def run_through_a_blip(site, pool, away_s):
    """Cut off one of two workers for *away_s* while it runs a task; return the number of runs."""
    proxy = Blackhole(site.server)
    try:
        worker = site.worker(pool=pool, broker=proxy.url())
        task = site.send("record", 14.0)
        site.journal.wait_started(task.id)
        site.worker(pool="threads", name="neighbour")
        proxy.sever()
        time.sleep(away_s)  # the length of the network failure.
        proxy.mend()
        site.journal.wait_finished(task.id, timeout_s=40)
        site.settled(timeout_s=40)
        assert worker.running
        return site.journal.runs(task.id)
    finally:
        proxy.close()


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", "gevent"))
def test_an_outage_of_many_heartbeats(redis_factory, site_factory, pool):
    """The first consumer to reconnect takes no other one for dead, so nothing runs twice."""
    options = {"visibility_timeout": 12.0, "restore_interval": 1.0, "orphan_grace": 6.0}
    site = site_factory(redis_factory(), **LATE, broker_transport_options=options)
    proxies = [Blackhole(site.server), Blackhole(site.server)]
    try:
        site.worker(pool=pool, broker=proxies[0].url())
        task = site.send("record", 24.0)
        site.journal.wait_started(task.id)
        first = site.worker(pool="threads", broker=proxies[1].url())
        for proxy in proxies:
            proxy.sever()
        time.sleep(15)  # three heartbeats of 4 s, and a little.
        proxies[1].mend()
        wait_until(
            lambda: (known := consumers_of(site).get(first.pid)) and known.connected,
            what="one that is back",
        )
        time.sleep(1)  # the network of the other fails a little longer.
        proxies[0].mend()
        site.journal.wait_finished(task.id, timeout_s=40)
        site.settled(timeout_s=40)
        assert 1 == site.journal.runs(task.id)
    finally:
        for proxy in proxies:
            proxy.close()


@pytest.mark.slow
def test_where_client_list_is_forbidden(fresh_redis, site_factory):
    """Without CLIENT LIST only leases detect dead consumers, and the log reports that once."""
    options = {
        "visibility_timeout": 6.0,
        "restore_interval": 0.5,
        "orphan_grace": 0.5,
        "poll_interval": 1.0,
    }
    site = site_factory(fresh_redis, **LATE, broker_transport_options=options)
    admin = fresh_redis.client()
    rule = acl_rule("worker", "celery", password="secret").split()
    admin.execute_command(*(word for word in rule if word != "+client|list"))
    url = site.broker.replace("://", "://celery:secret@")
    killed = site.worker(pool="threads", broker=url)
    task = site.send("long_first", 60.0)
    site.journal.wait_started(task.id)
    other = site.worker(pool="threads", broker=url)
    killed_at = time.monotonic()
    killed.kill_group()
    stays_true(lambda: site.journal.runs(task.id) == 1, for_s=3)
    again = site.journal.wait_started(task.id, times=2)
    # Its lease may have been renewed just before the kill, or a third of its length earlier.
    assert 3.5 < again.at - killed_at < 6 + 0.5 + 15  # one instead of 15 on a quiet machine
    site.journal.wait_finished(task.id)
    site.settled()
    assert 1 == other.log().count("dead consumers are detected when their leases end")


@pytest.mark.slow
def test_a_frozen_worker(fresh_redis, site_factory):
    """The tasks of a frozen worker run elsewhere within visibility_timeout and restore_interval."""
    options = {
        "visibility_timeout": 4.0,
        "restore_interval": 1.0,
        "orphan_grace": 0.5,
        "poll_interval": 1.0,
    }
    site = site_factory(fresh_redis, **LATE, broker_transport_options=options)
    frozen = site.worker(pool="prefork")
    task = site.send("long_first", 60.0)
    site.journal.wait_started(task.id)
    site.worker(pool="threads")
    frozen_at = time.monotonic()
    frozen.freeze()
    again = site.journal.wait_started(task.id, times=2)
    assert again.at - frozen_at < 4.0 + 1.0 * 1.1 + 10.0  # one instead of 10 on a quiet machine
    frozen.kill_group()
    site.journal.wait_finished(task.id)
    site.settled()


@pytest.mark.slow
@pytest.mark.long  # needs a quiet machine, since it measures time
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_how_soon_killed_workers_tasks_run_again(fresh_redis, site_factory, pool):
    """With default options, tasks of a killed worker run again within 10 s in 99 of 100 cases."""
    site = site_factory(fresh_redis, **LATE, broker_transport_options={})
    site.worker(pool="threads", concurrency=20, name="heir")
    took = []
    for number in range(10):
        # The victim has a queue of its own, so that it gets all of its tasks. The heir consumes
        # from that queue once the victim has its tasks.
        queue = f"victim{number}"
        victim = site.worker(pool=pool, concurrency=4, queues=[queue], name=queue)
        tasks = [site.send("long_first", 120.0, queue=queue).id for _ in range(4)]
        for task_id in tasks:
            site.journal.wait_started(task_id)
        site.app.control.add_consumer(queue, destination=["heir@test"], reply=True, timeout=5)
        killed_at = time.monotonic()
        victim.kill_group()
        took += [site.journal.wait_started(task_id, times=2).at - killed_at for task_id in tasks]
    p99 = quantiles(took, n=100, method="inclusive")[98]
    print(f"{pool}: {len(took)} tasks, p50 {sorted(took)[len(took) // 2]:.2f} s, p99 {p99:.2f} s")
    assert p99 < 10
    assert_balanced(site.broker)


@pytest.mark.slow
def test_a_worker_that_dies_while_the_broker_is_down(redis_factory, site_factory):
    """Its task runs again after the restart, once its lease has expired, and not before.

    After a restart, a dead consumer looks like one that has not reconnected yet.
    """
    lease_s = 6.0
    options = {"visibility_timeout": lease_s, "restore_interval": 0.5, "orphan_grace": 0.5}
    server = redis_factory(appendonly=True)
    site = site_factory(server, **LATE, broker_transport_options=options)
    killed = site.worker(pool="threads")
    task = site.send("long_first", 60)
    site.journal.wait_started(task.id)
    server.kill()
    killed.kill_group()
    restarted_at = time.monotonic()
    server.start()
    site.worker(pool="threads", concurrency=2)
    site.journal.wait_finished(task.id)
    assert time.monotonic() - restarted_at >= lease_s
    assert 2 == site.journal.runs(task.id)
    site.settled()
