"""Celery workers and publishers that start, and workers that stop, while a node is lost."""

from __future__ import annotations

import itertools
import subprocess
import sys
from contextlib import suppress

import pytest
from celery import Celery
from kombu import Connection, Consumer, Exchange, Queue
from kombu.exceptions import OperationalError

from reliq.client.cluster.slots import slot_of
from reliq.errors import BatchUncertain, BrokerUnavailable
from reliq.lua.keys import broker_keys, queue_keys
from reliq.message.envelope import unpack
from reliq.message.queue_names import partition_names
from tests.support.cluster import RedisCluster
from tests.support.site import FAST, CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import pools

LATE = {"task_acks_late": True, "task_ignore_result": True, "result_backend": None}
# The tests wait repeatedly for the timeout of a silent node.
SOON = {"broker_transport_options": {**FAST, "socket_timeout": 4.0}}
PATIENT_MS = 60_000  # no failover: the tests decide when a node returns


@pytest.fixture(scope="module")
def running():
    """Return a cluster of persistent nodes that serves the remaining slots after a loss."""
    extra = ("--cluster-require-full-coverage", "no")
    with RedisCluster(3, appendonly=True, node_timeout_ms=PATIENT_MS, extra=extra) as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    """Return the cluster, empty; the end of the test restarts or thaws its nodes."""
    running.flush()
    yield running
    for node in running.masters:
        if node.running:
            node.thaw()
        else:
            node.start()


@pytest.fixture
def site(cluster, tmp_path):
    """Return a Celery application on the cluster."""
    site = CelerySite(cluster, "reliq", tmp_path, LATE | SOON)
    yield site
    site.close()


def owner(cluster, queue):
    """Return the node of a queue."""
    return cluster.owner(slot_of(queue_keys("", queue).meta))


def named(cluster, node, pattern):
    """Return the first name for which *pattern* gives a queue at *node*."""
    names = (f"n{number}" for number in itertools.count())
    return next(name for name in names if owner(cluster, pattern.format(name)) is node)


@pytest.fixture
def victim(cluster):
    """Return a node that has queues only."""
    anchor = cluster.owner(slot_of(broker_keys("").queues))
    return next(node for node in cluster.masters if node is not anchor)


@pytest.fixture
def lost(cluster, victim):
    """Return a queue at the node that a test loses."""
    return named(cluster, victim, "{}")


@pytest.fixture
def other(cluster, victim):
    """Return a queue at another node."""
    node = next(node for node in cluster.masters if node is not victim)
    return named(cluster, node, "{}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "pool"),
    [
        ("killed", "prefork"),
        ("frozen", "threads"),
        pytest.param("killed", "threads", marks=pytest.mark.long),
        pytest.param("frozen", "prefork", marks=pytest.mark.long),
    ],
)
def test_a_worker_begins_without_the_queues_of_a_lost_node(
    site, cluster, victim, lost, other, pool, way
):
    """A worker starts without the queues of a lost node, and consumes from them after its return.

    The worker logs the missing queue. A queue that did not exist before is declared and bound after
    the node's return.
    """
    known = [site.send("record", queue=lost).id] if way == "killed" else []
    if way == "killed":
        victim.kill()
    else:
        victim.freeze()
    worker = site.worker(pool=pool, queues=(lost, other))
    site.journal.wait_finished(site.send("record", queue=other).id)
    assert f"starts without queue '{lost}'" in worker.log()
    if way == "killed":
        victim.start()
    else:
        victim.thaw()
    wait_until(
        lambda: f"queue '{lost}': its node answers" in worker.log(),
        timeout_s=40,
        what=lambda: f"the lost queue:\n{worker.tail()}",
    )
    for task in [*known, site.send("record", queue=lost).id]:
        site.journal.wait_finished(task)
    wait_until(
        lambda: site.app.control.ping(destination=[worker.name], timeout=2),
        timeout_s=40,
        what=lambda: f"a pong:\n{worker.tail()}",
    )
    assert 0 == worker.shut_down()
    for queue in (lost, other):
        site.settled(queue)
    assert {1} == set(site.journal.started().values())


def test_a_node_that_is_back_before_its_queue_is_consumed_from(cluster, victim):
    """A queue whose declaration failed is declared when the node answers."""
    app = Celery("begins", set_as_current=False)
    app.loader.worker_initialized = True  # as in a starting worker
    queue = Queue(named(cluster, victim, "{}"), Exchange("news", "fanout"), auto_delete=True)
    with Connection(cluster.url(), transport_options=FAST) as connection:
        victim.freeze()
        consumer = Consumer(connection, [queue], callbacks=[lambda *_: None])
        victim.thaw()
        assert victim.ask("PING")
        consumer.consume()
        store = connection.default_channel.transport.link.store

        def consumed():
            with suppress(TimeoutError):  # if the node answered slowly, consuming begins in here
                connection.drain_events(timeout=0.1)
            return store.consumers_of(queue.name)

        wait_until(consumed)
        assert [queue.name] == [item.queue for item in connection.transport.schedule.subscriptions]
        assert 1 == len(store.exchange_table("news").bindings)
    del app


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads", "solo")))
def test_a_worker_that_began_without_a_queue_ends(site, cluster, victim, lost, other, pool):
    """A missing queue does not delay a worker's end after SIGTERM."""
    victim.freeze()
    worker = site.worker(pool=pool, queues=(lost, other))
    site.journal.wait_finished(site.send("record", queue=other).id)
    assert 0 == worker.shut_down()
    victim.thaw()
    site.settled(other)


@pytest.fixture
def anchor(cluster):
    """Return the node of the consumers' register and of the exchanges."""
    return cluster.owner(slot_of(broker_keys("").queues))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "pool"),
    [
        ("killed", "prefork"),
        ("frozen", "gevent"),
        *[pytest.param("frozen", pool, marks=pytest.mark.long) for pool in ("prefork", "threads")],
        *[pytest.param("killed", pool, marks=pytest.mark.long) for pool in ("threads", "gevent")],
    ],
)
def test_a_worker_that_waits_for_the_register_says_so_and_ends(site, cluster, anchor, pool, way):
    """A worker logs that the register's node is lost, and ends within twice ``socket_timeout``."""
    if way == "killed":
        anchor.kill()
    else:
        anchor.freeze()
    worker = site.worker(pool=pool, ready=False)
    wait_until(lambda: "Trying to re-establish" in worker.log(), timeout_s=60)
    assert 0 == worker.shut_down(timeout_s=90)


@pytest.mark.slow
def test_a_worker_that_waited_for_the_register_begins(site, cluster, anchor):
    """A worker that waits for the register starts after the return of its node."""
    anchor.kill()
    worker = site.worker(ready=False)
    wait_until(lambda: "Trying to re-establish" in worker.log(), timeout_s=60)
    anchor.start()
    worker.wait_ready()
    site.journal.wait_finished(site.send("record").id)
    assert 0 == worker.shut_down()


def publisher(url, lost, other):
    """Return an application with a queue in six partitions, and another queue of its exchange."""
    app = Celery("publisher", broker=url, set_as_current=False)
    divided = Queue(lost, queue_arguments={"x-partitions": 6})
    app.conf.update(LATE, task_default_queue=lost, task_queues=[divided, Queue(other)])
    app.conf.broker_transport_options = {**FAST, "socket_timeout": 2.0}
    return app


def send(app, way, *names):
    """Publish four messages to each of these queues; return the number of failures."""
    failed = 0
    for name in names * 4:
        try:
            if way == "celery":
                app.send_task("t", queue=name, retry_policy={"max_retries": 1})
            else:
                with app.producer_or_acquire() as producer:
                    policy = {"max_retries": 1}
                    producer.publish("x", routing_key=name, retry=True, retry_policy=policy)
        except OperationalError:  # noqa: PERF203 - one of few
            failed += 1
    return failed


NEW = (
    "import sys; from tests.integration.cluster.test_cluster_begin import publisher, send;"
    "url, way, *names = sys.argv[1:]; sys.exit(send(publisher(url, *names), way, *names))"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "way"),
    [
        ("kill", "celery"),
        ("freeze", "undeclared"),
        pytest.param("kill", "undeclared", marks=pytest.mark.long),
        pytest.param("freeze", "celery", marks=pytest.mark.long),
    ],
)
def test_publishers_go_on_without_the_node_of_a_divided_queue(
    cluster, victim, lost, other, loss, way
):
    """Publishers continue without the node of a queue's own partition and its exchange's bindings.

    Both a running and a new publisher do. Only a publish that may have reached the node fails. A
    binding that could not be made is made after the node's return.
    """
    app = publisher(cluster.url(), lost, other)
    names = partition_names(lost, 6)
    with app.connection() as connection:
        store = connection.default_channel.transport.link.store
        # In the test before, the node may have been unreachable to this process.
        wait_until(lambda: not any(map(store.is_unreachable, names)))
        for _ in range(2):  # Celery declares only once
            cluster.flush()
            assert 0 == send(app, "celery", lost, other)
            assert all(map(store.layout, names))
    again = Queue(lost, Exchange(other), "again", queue_arguments={"x-partitions": 6})
    late = Queue(named(cluster, owner(cluster, other), "late{}"), Exchange(lost), "late")
    getattr(victim, loss)()
    command = [sys.executable, "-c", NEW, cluster.url(), way, lost, other]
    new = subprocess.run(command, timeout=60, check=False)
    assert 0 == new.returncode
    assert (loss == "freeze") >= send(app, way, lost, other)
    with app.connection() as connection:
        producer = connection.Producer()
        producer.publish("x", routing_key=late.name, declare=[late, again])
        for exchange, key in ((lost, "late"), (other, "again")):
            with pytest.raises(BrokerUnavailable):
                producer.publish("x", exchange=exchange, routing_key=key)
            with pytest.raises(BatchUncertain), producer.batch():
                producer.publish("x", exchange=exchange, routing_key=key)
        (victim.start if loss == "kill" else victim.thaw)()
        store = connection.default_channel.transport.link.store

        def bound():
            producer.publish("x", routing_key=other)
            with suppress(BrokerUnavailable):
                return {unpack(one)[1] for one in store.exchange_table(lost).bindings}
            return ()

        wait_until(lambda: late.name in bound())
    app.close()
