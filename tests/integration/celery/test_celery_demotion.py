"""The broker becomes a replica while workers run, and then a master again."""

from __future__ import annotations

import time

import pytest

from tests.support.waiting import wait_until

LATE = {"task_acks_late": True, "task_ignore_result": True, "worker_prefetch_multiplier": 1}
OPTIONS = {
    "visibility_timeout": 20.0,
    "restore_interval": 0.5,
    "orphan_grace": 5.0,
    "poll_interval": 1.0,
    "socket_timeout": 3.0,
}
POOLS = ("prefork", "threads")


def connections_of(server) -> int:
    """Return the number of connections that the server has accepted so far."""
    return int(server.client().info("stats")["total_connections_received"])


@pytest.fixture
def pair(redis_factory):
    """Return a master for the workers, and the server that it will replicate later.

    That server replicates the master first, so no data is lost.
    """
    master = redis_factory()
    other = redis_factory(replica_of=master)
    other.wait_synced()
    return master, other


def demote(master, other):
    """Make *master* a replica of *other*, which has all its data."""
    client = master.client()
    client.wait(1, 5000)
    other.promote()
    master.follow(other)
    wait_until(lambda: client.info("replication")["role"] == "slave")
    client.close()


@pytest.mark.slow
def test_demotion_under_workers(pair, site_factory):
    """A worker of a demoted broker, idle or busy, waits, and works again after the promotion.

    Waiting is cheap: the worker connects now and then, with growing pauses.
    """
    master, other = pair
    site = site_factory(master, **LATE, broker_transport_options=OPTIONS, result_backend=None)
    workers = {
        pool: site.worker(pool=pool, queues=[pool], name=pool, ready=False) for pool in POOLS
    }
    idle = site.worker(pool="threads", queues=["idle"], name="idle", ready=False)
    for worker in (*workers.values(), idle):
        worker.wait_ready()
    running = [site.send("record", 4.0, queue=pool).id for pool in POOLS]
    for task_id in running:
        site.journal.wait_started(task_id)
    demote(master, other)
    for worker in (*workers.values(), idle):
        worker.wait_log("onnection to broker lost")
    before, began = connections_of(master), time.monotonic()
    for task_id in running:
        site.journal.wait_finished(task_id)
    wait_until(lambda: time.monotonic() - began > 8)
    made = connections_of(master) - before
    print(f"{made} connections in {time.monotonic() - began:.1f} s by 3 workers")
    # A background loop connects every second or two, the worker itself ever more rarely. Each try
    # makes one connection or two. A hot loop would make hundreds.
    assert made < 60
    # A worker that connected to a replica would lose that connection again and again.
    losses = {w.name: w.log().count("onnection to broker lost") for w in (*workers.values(), idle)}
    assert dict.fromkeys(losses, 1) == losses
    master.promote()
    after = [site.send("record", queue=queue).id for queue in (*POOLS, "idle")]
    for task_id in after:
        site.journal.wait_finished(task_id, timeout_s=60)
    assert dict.fromkeys([*running, *after], 1) == site.journal.started()
    for worker in (*workers.values(), idle):
        assert worker.running
    for queue in (*POOLS, "idle"):
        site.settled(queue)


def test_demotion_with_another_url(pair, site_factory):
    """With a second URL the worker switches to the promoted server, which has its messages."""
    master, other = pair
    urls = f"{master.url()};{other.url()}"
    site = site_factory(master, **LATE, broker_transport_options=OPTIONS, result_backend=None)
    workers = [site.worker(pool=pool, name=pool, broker=urls, ready=False) for pool in POOLS]
    for worker in workers:
        worker.wait_ready()
    site.journal.wait_finished(site.send("record").id)
    demote(master, other)
    moved = site_factory(other, **LATE, broker_transport_options=OPTIONS, result_backend=None)
    task = moved.send("record")
    site.journal.wait_finished(task.id, timeout_s=30)
    for worker in workers:
        worker.wait_log("Connected to", times=2, timeout_s=30)
        assert worker.running
    moved.settled()
