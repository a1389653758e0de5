"""Interrupted moves of slots, a lost majority, lost nodes of the URL, and a killed consumer."""

from __future__ import annotations

import re
import threading
import time
from contextlib import ExitStack

import pytest
from kombu import Connection
from kombu.exceptions import OperationalError

from reliq import BrokerUnavailable, NotConfirmed
from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import broker_keys, queue_keys
from tests.integration.kombu_client import declare, get, publish
from tests.support.audits import assert_balanced
from tests.support.cluster import Migration, RedisCluster
from tests.support.site import FAST, CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import pools

pytestmark = pytest.mark.slow

NODE_TIMEOUT_S = 1.0
QUEUES = ("celery", "red", "green", "blue")
POOLS = pools("prefork", of=("prefork", "threads"))
OPTIONS = {**FAST, "visibility_timeout": 5.0, "socket_timeout": 3.0}
CONFIG = {
    "task_acks_late": True,
    "task_ignore_result": True,
    "result_backend": None,
    "task_publish_retry": False,
    "worker_prefetch_multiplier": 1,
    "broker_transport_options": OPTIONS,
}
PATIENT = {"max_retries": 60, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.3}


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


def meta(queue):
    """Return a key that exists as long as the queue."""
    return queue_keys("", queue).meta


def slot(queue):
    """Return the slot of a queue."""
    return slot_of(meta(queue))


def at(node):
    """Return the name of a node."""
    return f"127.0.0.1:{node.port}"


def begin_move(cluster, queue):
    """Open the slot of a queue towards another master."""
    source = cluster.owner(slot(queue))
    target = next(node for node in cluster.masters if node is not source)
    migration = Migration(source, target, meta(queue))
    migration.open()
    return migration


def reconnected(worker):
    """Whether Celery has lost its connection."""
    return "onnection to broker lost" in worker.log()


# -- a move of slots


@pytest.mark.parametrize("pool", POOLS)
def test_a_move_is_broken_off(cluster, site, pool):
    """An interrupted move blocks only its queue, with the reason; a held message runs once."""
    worker = site.worker(pool=pool, concurrency=3, queues=QUEUES)
    for queue in QUEUES:
        site.journal.wait_finished(site.send("record", queue=queue).id)
    held = site.send("record_late", 4, queue="red").id
    site.journal.wait_started(held)
    migration = begin_move(cluster, "red")
    keys = migration.keys(migration.source)
    migration.move(keys[::2])

    began = time.monotonic()
    with pytest.raises(OperationalError) as caught:
        site.send("record", queue="red")
    assert 2.5 < time.monotonic() - began < 4.5  # socket_timeout: 3
    late = rf"slot {migration.slot} was not served in time \(socket_timeout 3 s\): .*"
    way = rf"moving from \S*{at(migration.source)}\S* to {at(migration.target)}\..*"
    assert re.search(f"{late}{way}redis-cli --cluster fix", str(caught.value)), caught.value

    longest = 0.0
    others = [queue for queue in QUEUES if slot(queue) != migration.slot]
    for number in range(30):
        began = time.monotonic()
        task = site.send("record", queue=others[number % len(others)]).id
        site.journal.wait_finished(task)
        longest = max(longest, time.monotonic() - began)
    print(f"the longest task elsewhere took {longest:.2f} s")
    assert longest < 2  # a limit for a busy machine; none of these tasks waits for the slot
    site.journal.wait_finished(held)

    migration.end()
    site.journal.wait_finished(site.send("record", queue="red").id)
    for queue in QUEUES:
        site.settled(queue)
    assert 1 == site.journal.runs(held)
    assert not reconnected(worker)
    assert worker.shut_down() == 0


def test_a_move_is_broken_off_before_a_key_has_moved(cluster, site):
    """A move without a moved key leaves nothing half done, although publishes fail meanwhile."""
    worker = site.worker(pool="threads", queues=QUEUES)
    site.journal.wait_finished(site.send("record", queue="red").id)
    migration = begin_move(cluster, "red")
    with pytest.raises(OperationalError, match=f"slot {migration.slot} was not served"):
        site.send("record", queue="red")
    migration.target.ask("CLUSTER", "SETSLOT", migration.slot, "STABLE")
    migration.source.ask("CLUSTER", "SETSLOT", migration.slot, "STABLE")
    site.journal.wait_finished(site.send("record", queue="red").id)
    assert not reconnected(worker)
    assert worker.shut_down() == 0


# -- the majority


def test_a_minority_confirms_nothing(cluster):
    """An isolated master first stores without confirming, then refuses; a retry stores once."""
    alone = cluster.owner(slot("red"))
    options = {**OPTIONS, "confirm": "replicated", "confirm_timeout": 0.5}
    outcomes = []
    with Connection(cluster.url(), transport_options=options) as connection:
        declare(connection, "red")
        producer = connection.Producer(auto_declare=False)

        def send(number, **how):
            producer.publish(number, routing_key="red", **how)

        send(0)
        with ExitStack() as stack:
            for node in cluster.nodes:
                if node is not alone:
                    node.freeze()
                    stack.callback(node.thaw)
            until = time.monotonic() + 6 * NODE_TIMEOUT_S
            number = 0
            while time.monotonic() < until:
                number += 1
                with pytest.raises((BrokerUnavailable, OperationalError)) as caught:
                    send(number)
                outcomes.append(type(caught.value))
                print(caught.value)
            assert b"cluster_state:fail" in alone.ask("CLUSTER", "INFO")
            # The retry begins while the master is isolated, and ends after the return of the
            # others.
            last = number + 1
            healing = threading.Timer(1.0, stack.close)
            healing.start()
            send(last, retry=True, retry_policy=PATIENT)
            healing.join()
        assert NotConfirmed in outcomes
        assert NotConfirmed is not outcomes[-1]  # by then the master had refused to store messages
        found = []
        while (message := get(connection, "red")) is not None:
            found.append(message.payload)
            message.ack()
        assert 1 == found.count(0) == found.count(last)
    assert_balanced(cluster.url())


# -- the nodes of the URL


def test_the_nodes_of_the_url_are_gone(cluster, tmp_path_factory):
    """Known nodes suffice after all nodes of the URL are lost, also for new connections."""
    cluster.seeds = list(cluster.replicas)
    site = CelerySite(cluster, "reliq", tmp_path_factory.mktemp("site"), dict(CONFIG))
    try:
        worker = site.worker(pool="threads", concurrency=3, queues=QUEUES)
        for queue in QUEUES:
            site.journal.wait_finished(site.send("record", queue=queue).id)
        for node in cluster.replicas:
            node.kill()
        longest = 0.0
        for number in range(20):
            if number == 10:  # no node of the URL could name its new node
                migration = begin_move(cluster, "red")
                migration.end()
            began = time.monotonic()
            task = site.send("record", queue=QUEUES[number % len(QUEUES)]).id
            longest = max(longest, time.monotonic() - began)
            site.journal.wait_finished(task)
        print(f"the longest publish took {longest:.2f} s")
        assert longest < 1
        began = time.monotonic()
        with Connection(site.broker, transport_options=OPTIONS) as connection:
            publish(connection, "mine", 1)
            assert 1 == get(connection, "mine").payload
        assert time.monotonic() - began < 1
        assert not reconnected(worker)
        assert worker.shut_down() == 0
        assert set(site.journal.started().values()) == {1}
    finally:
        site.close()
    cluster.seeds = cluster.masters
    assert_balanced(cluster.url())


def test_the_only_node_of_the_url_is_gone(cluster, tmp_path_factory):
    """The URL's only node, a master, is replaced by its replica, which the URL does not name."""
    seed = cluster.owner(slot_of(broker_keys("").queues))
    cluster.seeds = [seed]
    site = CelerySite(cluster, "reliq", tmp_path_factory.mktemp("site"), dict(CONFIG))
    try:
        worker = site.worker(pool="threads", concurrency=3, queues=QUEUES)
        for queue in QUEUES:
            site.journal.wait_finished(site.send("record", queue=queue).id)
        seed.kill()
        others = [queue for queue in QUEUES if cluster.owner(slot(queue)) is not seed]
        longest = 0.0
        for number in range(10):
            began = time.monotonic()
            site.journal.wait_finished(site.send("record", queue=others[number % len(others)]).id)
            longest = max(longest, time.monotonic() - began)
        wait_until(lambda: cluster.owner(slot_of(broker_keys("").queues)).running)
        wait_until(lambda: sent(site), what="queues at the replica")
        assert longest < 1.5
        assert not reconnected(worker)
        assert worker.shut_down() == 0
    finally:
        site.close()


def sent(site):
    """Whether each queue accepts a task now and the task runs."""
    try:
        tasks = [site.send("record", queue=queue).id for queue in QUEUES]
    except OperationalError:
        return False
    for task in tasks:
        site.journal.wait_finished(task)
    return True


# -- a consumer


@pytest.mark.parametrize("pool", POOLS)
def test_a_consumer_is_killed(cluster, tmp_path_factory, pool):
    """Messages of a killed consumer run again within seconds, long before its leases expire."""
    options = {"visibility_timeout": 600.0}  # all other options have their defaults
    config = {**CONFIG, "broker_transport_options": options}
    site = CelerySite(cluster, "reliq", tmp_path_factory.mktemp("site"), config)
    try:
        victim = site.worker(pool=pool, concurrency=len(QUEUES), queues=QUEUES)
        held = [site.send("record_late", 600, queue=queue).id for queue in QUEUES]
        for task in held:
            site.journal.wait_started(task)
        assert len({cluster.owner(slot(queue)).port for queue in QUEUES}) > 1
        other = site.worker(pool=pool, concurrency=len(QUEUES), queues=QUEUES)
        began = time.monotonic()
        victim.kill_group()
        for task in held:
            site.journal.wait_started(task, times=2)
        took_s = time.monotonic() - began
        print(f"all run again after {took_s:.1f} s")
        assert took_s < 30
        assert dict.fromkeys(held, 2) == dict(site.journal.started())
        assert re.search("killed|gone|orphan", other.log())
        other.kill_group()
    finally:
        site.close()
