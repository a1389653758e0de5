"""A cluster under load: slots move, and nodes die, freeze and return."""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from kombu.exceptions import OperationalError

from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import broker_keys, queue_keys
from tests.support.cluster import Migration, RedisCluster
from tests.support.journal import STARTED
from tests.support.site import FAST, CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import POOLS, pools

pytestmark = pytest.mark.slow

NODE_TIMEOUT_S = 1.0
QUEUES = ("celery", "red", "green", "blue")
CONFIG = {
    "task_acks_late": True,
    "task_ignore_result": True,
    "result_backend": None,
    "broker_transport_options": {**FAST, "visibility_timeout": 5.0},
}


@pytest.fixture
def cluster():
    """Return a cluster of three masters, each with one replica."""
    with RedisCluster(3, 1, node_timeout_ms=int(NODE_TIMEOUT_S * 1000)) as cluster:
        yield cluster


@pytest.fixture
def site(cluster, tmp_path_factory):
    """Return a Celery application on the cluster."""
    site = CelerySite(cluster, "reliq", tmp_path_factory.mktemp("site"), dict(CONFIG))
    yield site
    site.close()


class Load:
    """A thread for each queue that publishes to it, and notes the stored tasks."""

    def __init__(self, site):
        self._site = site
        self._over = threading.Event()
        self.sent = {queue: {} for queue in QUEUES}
        self.errors = []
        self.longest = dict.fromkeys(QUEUES, 0.0)
        self._threads = [threading.Thread(target=self._run, args=(queue,)) for queue in QUEUES]
        for thread in self._threads:
            thread.start()

    def end(self):
        """Stop publishing."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, queue):
        while not self._over.wait(0.04):
            began = time.monotonic()
            try:
                task = self._site.send("record", queue=queue).id
            except OSError as exc:
                self.errors.append((queue, str(exc)))
            else:
                self.sent[queue][task] = time.monotonic()
            self.longest[queue] = max(self.longest[queue], time.monotonic() - began)

    def goes_on(self, count=10):
        """Wait until *count* more tasks are stored in each queue."""
        wanted = {queue: len(sent) + count for queue, sent in self.sent.items()}
        wait_until(
            lambda: self.errors or all(len(self.sent[name]) >= wanted[name] for name in QUEUES),
            timeout_s=30,
        )

    def check(self, *, timeout_s=40.0):
        """Wait until all tasks have run; fail unless each has run once.

        Returns the longest wait of a task for each queue.
        """
        tasks = {task for sent in self.sent.values() for task in sent}
        journal = self._site.journal
        wait_until(lambda: tasks <= journal.finished().keys(), timeout_s=timeout_s)
        for queue in QUEUES:
            self._site.settled(queue)
        assert {} == {task: times for task, times in journal.started().items() if times > 1}
        began = {entry.key: entry.at for entry in journal.entries(STARTED)}
        return {
            queue: max(began[task] - at for task, at in sent.items())
            for queue, sent in self.sent.items()
        }


@contextmanager
def frozen(node):
    """Freeze a node during the block."""
    node.freeze()
    try:
        yield
    finally:
        node.thaw()


def elsewhere(cluster, number):
    """Return the queues of other nodes than that of a slot."""
    node = cluster.owner(number)
    return [name for name in QUEUES if cluster.owner(slot(name)) is not node]


def slot(queue):
    """Return the slot of a queue."""
    return slot_of(queue_keys("", queue).meta)


def moves(cluster, key, seed):
    """Move the slot of *key* to another master, its keys in two parts."""
    chance = random.Random(seed)
    source = cluster.owner(slot_of(key))
    target = chance.choice([node for node in cluster.masters if node is not source])
    migration = Migration(source, target, key)
    migration.open()
    keys = migration.keys(source)
    migration.move(chance.sample(keys, len(keys) // 2))
    yield
    migration.end()


@pytest.fixture
def worker(site, pool):
    """Start a worker of *pool* that consumes from all queues."""
    return site.worker(pool=pool, concurrency=2, queues=QUEUES)


@pytest.fixture
def load(site, worker):
    """Publish continuously, after the start of a worker."""
    del worker
    load = Load(site)
    yield load
    load.end()


def reconnected(worker):
    """Whether Celery has lost its connection."""
    return "onnection to broker lost" in worker.log()


@pytest.mark.parametrize("pool", pools("prefork"))
def test_slots_of_loaded_queues_move(cluster, worker, load):
    """Moves of slots under load lose and repeat no task, and cause no error and no reconnection."""
    for number in range(12):
        queue = QUEUES[number % len(QUEUES)]
        key = broker_keys("").queues if number % 5 == 4 else queue_keys("", queue).meta
        load.goes_on(3)
        for _ in moves(cluster, key, number):
            time.sleep(0.1)  # meanwhile, the slot's keys are divided between both nodes
    load.goes_on()
    load.end()
    print(load.longest, load.check())
    assert [] == load.errors
    assert not reconnected(worker)
    assert worker.shut_down() == 0


@pytest.mark.parametrize(
    ("pool", "what"),
    [
        ("prefork", "queue"),
        ("gevent", "anchor"),
        *[pytest.param(pool, "queue", marks=pytest.mark.long) for pool in POOLS[1:]],
        *[pytest.param(pool, "anchor", marks=pytest.mark.long) for pool in POOLS[:-1]],
    ],
)
def test_a_master_is_killed(cluster, worker, load, what):
    """Queues of a killed master continue at its replica, without a reconnection of the worker."""
    load.goes_on()
    key = queue_keys("", "red").meta if what == "queue" else broker_keys("").queues
    victim = cluster.owner(slot_of(key))
    victim.kill()

    def replaced():
        with suppress(LookupError):  # not replaced yet
            return cluster.owner(slot("red")).running

    wait_until(replaced)
    load.goes_on(50)
    load.end()
    print(load.longest, load.check())
    assert [] == load.errors
    assert not reconnected(worker)
    assert worker.shut_down() == 0


@pytest.mark.parametrize("pool", pools("prefork", "gevent"))
def test_a_master_is_frozen(cluster, worker, load):
    """Queues of a frozen master, which reports no replacement, continue at its replica."""
    load.goes_on()
    with frozen(cluster.owner(slot("red"))):
        time.sleep(NODE_TIMEOUT_S + 6)
    load.goes_on(50)
    load.end()
    print(load.longest, load.check(), load.errors)
    assert not reconnected(worker)
    assert worker.shut_down() == 0


@pytest.fixture
def bare_cluster():
    """Return a cluster of persistent nodes without replicas that serves the remaining slots."""
    options = {"node_timeout_ms": int(NODE_TIMEOUT_S * 1000), "appendonly": True}
    extra = ["--cluster-require-full-coverage", "no"]
    with RedisCluster(3, extra=extra, **options) as cluster:
        yield cluster


@pytest.mark.parametrize("pool", pools("prefork", "gevent"))
def test_a_node_without_a_replica_is_away(bare_cluster, tmp_path_factory, pool):
    """Publishes to a lost node fail; its leases and acks are kept, and other queues are served."""
    options = {**CONFIG["broker_transport_options"], "socket_timeout": 3.0}
    config = {**CONFIG, "broker_transport_options": options, "task_publish_retry": False}
    site = CelerySite(bare_cluster, "reliq", tmp_path_factory.mktemp("site"), config)
    try:
        # Not the node of the keys outside queues: declarations wait for that node.
        away, *_ = elsewhere(bare_cluster, slot_of(broker_keys("").queues))
        others = elsewhere(bare_cluster, slot(away))
        worker = site.worker(pool=pool, concurrency=2, queues=QUEUES)
        held = site.send("record_late", 4, queue=away).id
        site.journal.wait_started(held)
        victim = bare_cluster.owner(slot(away))
        victim.kill()
        with pytest.raises(OperationalError):  # perhaps over a connection that it has closed
            site.send("record", queue=away)
        with pytest.raises(OperationalError, match=r"slot \d+ was not served"):
            site.send("record", queue=away)
        site.journal.wait_finished(held)
        for number in range(9):
            task = site.send("record", queue=others[number % len(others)]).id
            site.journal.wait_finished(task)
        victim.start()
        site.journal.wait_finished(site.send("record", queue=away).id)
        site.settled(away)
        assert 1 == site.journal.runs(held)
        assert not reconnected(worker)
        assert worker.shut_down() == 0
    finally:
        site.close()


@pytest.mark.parametrize("pool", pools("prefork"))
def test_the_anchor_is_frozen_for_long(tmp_path_factory, pool):
    """During a long freeze of the anchor, queues at other nodes are served and leases renewed."""
    cluster = RedisCluster(3, node_timeout_ms=60_000).start()
    # Each worker takes only what it can run: a task behind a long one would be late.
    config = {**CONFIG, "task_publish_retry": False, "worker_prefetch_multiplier": 1}
    site = CelerySite(cluster, "reliq", tmp_path_factory.mktemp("site"), config)
    try:
        anchor = cluster.owner(slot_of(broker_keys("").queues))
        healthy = elsewhere(cluster, slot_of(broker_keys("").queues))
        worker = site.worker(pool=pool, concurrency=3, queues=QUEUES)
        other = site.worker(pool=pool, concurrency=3, queues=QUEUES)
        many = 0 if pool == "solo" else 2  # it would run nothing else meanwhile
        long = [site.send("record_late", 15, queue=healthy[0]).id for _ in range(many)]
        for task in long:
            site.journal.wait_started(task)
        # The publisher has declared the queue: a declaration would wait for the anchor.
        site.journal.wait_finished(site.send("record", queue=healthy[-1]).id)
        longest = 0.0
        with frozen(anchor):
            until = time.monotonic() + 20
            while time.monotonic() < until:
                began = time.monotonic()
                task = site.send("record", queue=healthy[-1]).id
                site.journal.wait_finished(task)
                longest = max(longest, time.monotonic() - began)
        print(f"the longest task took {longest:.2f} s")
        for task in long:
            site.journal.wait_finished(task)
        for queue in QUEUES:
            site.settled(queue)
        assert set(site.journal.started().values()) == {1}
        assert longest < 8  # far below the 20 s of the freeze, on a busy machine
        for one in (worker, other):
            assert not reconnected(one)
            assert one.shut_down() == 0
    finally:
        site.close()
        cluster.destroy()
