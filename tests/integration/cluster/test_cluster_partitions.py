"""A queue that is divided over the nodes of a cluster, with real workers under load."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest
from kombu import Connection, Queue

from reliq.admin import Inspector
from reliq.client.cluster.slots import slot_of
from reliq.errors import BrokerUnavailable
from reliq.lua.keys import broker_keys, queue_keys
from reliq.message.queue_names import partition_names
from tests.support.cluster import RedisCluster
from tests.support.site import FAST, CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import pools

pytestmark = pytest.mark.slow

CONFIG = {
    "task_acks_late": True,
    "task_ignore_result": True,
    "result_backend": None,
    "broker_transport_options": {**FAST, "visibility_timeout": 5.0, "partitions": 4},
}


@pytest.fixture
def cluster():
    """Return a cluster of three masters, each with one replica."""
    with RedisCluster(3, 1, node_timeout_ms=1000) as cluster:
        yield cluster


@pytest.fixture
def site(cluster, tmp_path_factory):
    """Return a Celery application on the cluster."""
    site = CelerySite(cluster, "reliq", tmp_path_factory.mktemp("site"), dict(CONFIG))
    yield site
    site.close()


class Load:
    """A thread that publishes tasks, and notes the stored ones."""

    def __init__(self, site):
        self._site = site
        self._over = threading.Event()
        self.sent = []
        self.errors = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._over.wait(0.02):
            self._send()

    def _send(self):
        try:
            self.sent.append(self._site.send("record").id)
        except OSError as exc:
            self.errors.append(str(exc))

    def goes_on(self, count=40):
        """Wait until *count* more tasks are stored."""
        wanted = len(self.sent) + count
        wait_until(lambda: self.errors or len(self.sent) >= wanted, timeout_s=60)
        assert [] == self.errors

    def end(self):
        """Stop publishing."""
        self._over.set()
        self._thread.join()

    def check(self):
        """Wait until all tasks have run; fail unless each has run once."""
        journal, tasks = self._site.journal, set(self.sent)
        wait_until(lambda: tasks <= journal.finished().keys(), timeout_s=60)
        self._site.settled("celery", timeout_s=30)
        assert {} == {task: times for task, times in journal.started().items() if times > 1}


@pytest.fixture
def load(site):
    """Publish to a queue that is created by the first publish, with four partitions."""
    load = Load(site)
    yield load
    load.end()


@pytest.mark.parametrize("pool", pools("prefork"))
def test_the_number_of_partitions_changes_under_load(site, load, pool):
    """Each task runs once while the number of partitions changes, and each ledger balances."""
    workers = [site.worker(pool=pool, concurrency=2, queues=["celery"]) for _ in range(2)]
    load.goes_on()
    with Inspector(site.broker, site.transport_options) as inspector:
        for count in (8, 2, 6):
            inspector.configure("celery", {"x-partitions": count})
            load.goes_on()
        load.end()
        load.check()
        results = inspector.audit()
        assert all(result.balanced for result in results), results
        assert ["celery"] == [name for name in inspector.queues() if name == "celery"]
        assert 6 == inspector.settings("celery")["x-partitions"]
    assert [0, 0] == [worker.shut_down() for worker in workers]


def test_partitions_at_a_node_that_dies(cluster, site, load):
    """Partitions of a dead node continue at its replica; other partitions continue meanwhile."""
    site.worker(pool="threads", concurrency=4, queues=["celery"])
    load.goes_on()
    names = partition_names("celery", 4)
    nodes = [cluster.owner(slot_of(queue_keys("", name).meta)) for name in names]
    assert 1 < len(set(map(id, nodes)))
    nodes[1].kill()
    began, before = time.monotonic(), len(site.journal.finished())
    wait_until(lambda: len(site.journal.finished()) > before + 20, timeout_s=30)
    print("tasks went on after", time.monotonic() - began)
    load.goes_on(100)
    load.end()
    load.check()


def test_a_publisher_finds_the_replica_that_takes_over(cluster):
    """A publisher that avoids a lost node learns that a replica has taken over its slots."""
    names = partition_names("q", 4)
    options = {**FAST, "socket_timeout": 5.0}
    with Connection(cluster.url(), transport_options=options) as connection:
        channel = connection.default_channel
        Queue("q", queue_arguments={"x-partitions": 4})(channel).declare()
        places = [slot_of(queue_keys("", name).meta) for name in names]
        nodes = [cluster.owner(slot) for slot in places]
        anchor = cluster.owner(slot_of(broker_keys("").queues))
        lost = next(i for i in range(4) if nodes[i] not in (nodes[0], anchor))
        nodes[lost].kill()
        # As if another connection had found it lost: this connection never uses the node.
        slots = connection.transport.link.store._wire.slots
        slots.unreachable.add(slots.place_of(places[lost]))

        def taken_over():
            with suppress(BrokerUnavailable):
                connection.Producer().publish(0, routing_key="q")
            store = connection.transport.link.store
            return not store.is_unreachable(names[lost]) and store.reads.status(names[lost]).ready

        wait_until(taken_over, timeout_s=60)
        assert 0 == sum(connection.transport.link.store.is_unreachable(name) for name in names)


def test_a_worker_that_is_killed(site, load):
    """Messages of a killed worker return from all partitions."""
    first = site.worker(pool="prefork", concurrency=2, queues=["celery"])
    load.goes_on()
    site.worker(pool="prefork", concurrency=2, queues=["celery"])
    first.kill_group()
    load.goes_on()
    load.end()
    journal, tasks = site.journal, set(load.sent)
    wait_until(lambda: tasks <= journal.finished().keys(), timeout_s=60)
    site.settled("celery", timeout_s=30)
