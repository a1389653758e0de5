"""A file behind a cluster: the nodes of a list are one broker, and the spool is the other."""

from __future__ import annotations

import pytest
from kombu import Connection, Exchange, Queue

from reliq.admin import Inspector
from reliq.engines.redis.cluster.slots import slot_of
from reliq.engines.redis.keys import queue_key, queues
from reliq.message.queue_names import partition_names
from reliq.signals import broker_switched
from tests.integration.kombu_client import publish
from tests.integration.test_spool import FAST, SETTINGS, counts
from tests.support.audits import assert_balanced
from tests.support.cluster import RedisCluster
from tests.support.site import CelerySite
from tests.support.waiting import stays_true, wait_until


@pytest.fixture
def cluster():
    """Return a cluster of two masters, which keep what they have confirmed."""
    cluster = RedisCluster(2, appendonly=True)
    try:
        yield cluster.start()
    finally:
        cluster.destroy()


def restart(cluster):
    """Start all nodes again; return when each says that the cluster is whole."""
    for node in cluster.nodes:
        node.start()
    cluster.wait_whole(timeout_s=60)


def test_a_cluster_is_away(cluster, tmp_path):
    """All its nodes: what is published goes to the spool, and comes home when they are back."""
    home, spool = cluster.url(), f"reliq-sqlite:///{tmp_path}/spool.db"
    options = {**FAST, "socket_connect_timeout": 1, "socket_timeout": 3}
    settings = {**SETTINGS, "broker_transport_options": options}
    site = CelerySite(cluster, "reliq", tmp_path, settings)
    site.broker = f"{home};{spool}"
    queues = ("celery", "red")
    try:
        for name in queues:
            site.send("record_late", queue=name)
            assert {"ready": 1} == counts(home, name)
        for node in cluster.nodes:
            node.kill()
        sent = [site.send("record_late", queue=name).id for name in (*queues, *queues)]
        kept = [sum(counts(spool, name).values()) for name in queues]
        assert [2, 2] == kept
        restart(cluster)
        wait_until(lambda: not any(counts(spool, name) for name in queues), timeout_s=90)
        assert [3, 3] == [sum(counts(home, name).values()) for name in queues]
        site.worker(pool="solo", queues=queues)
        for task in sent:
            site.journal.wait_finished(task, timeout_s=60)
        assert {1} == set(site.journal.started().values())
        with Connection(spool) as connection:
            publish(connection, "red", "left by another")
        wait_until(lambda: {} == counts(spool, "red"), timeout_s=60)
        assert_balanced(home)
        assert_balanced(spool)
    finally:
        site.close()


@pytest.fixture
def bare_cluster():
    """Return a cluster of three masters that serves what slots it has; nodes keep their data."""
    extra = ["--cluster-require-full-coverage", "no"]
    cluster = RedisCluster(3, node_timeout_ms=1000, appendonly=True, extra=extra)
    try:
        yield cluster.start()
    finally:
        cluster.destroy()


@pytest.fixture
def switches():
    """Return where connections have gone to, in order."""
    found = []

    def note(sender, new, **_):
        del sender
        found.append(new)

    with broker_switched.connected_to(note):
        yield found


def owner(cluster, key):
    """Return the node of a key."""
    return cluster.owner(slot_of(key))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["round-robin", "primary"])
@pytest.mark.parametrize("lost", ["queue", "anchor"])
def test_one_node_is_away(bare_cluster, tmp_path, switches, monkeypatch, strategy, lost):
    """Who publishes to it stays at the spool until it is back; what is for others comes home."""
    monkeypatch.setattr("reliq.failover.failback._SWEPT_EVERY_S", 0.5)
    cluster = bare_cluster
    anchor = owner(cluster, queues(""))
    victim = next(node for node in cluster.masters if (node is anchor) == (lost == "anchor"))
    # That of the lost node is the first that is moved home.
    names = [[f"{letter}{number}" for number in range(100)] for letter in "ab"]
    nodes = [{name: owner(cluster, queue_key("", name, "meta")) for name in of} for of in names]
    there = next(name for name, node in nodes[0].items() if node is victim)
    here = next(name for name, node in nodes[1].items() if node is not victim)
    home, spool = cluster.url(), f"reliq-sqlite:///{tmp_path}/spool.db"
    options = {**FAST, "socket_connect_timeout": 1, "socket_timeout": 2}
    policy = {"max_retries": 20, "interval_start": 0, "interval_max": 0.2}
    sent = {there: 0, here: 0}

    def send(name):
        queue = Queue(name, Exchange("e", "direct"), name)
        route = {"exchange": queue.exchange, "routing_key": name, "declare": [queue]}
        if lost == "queue":
            route = {"routing_key": name}  # by no binding, so by this node alone
        producer.publish("x", **route, retry=True, retry_policy=policy)
        sent[name] += 1
        return True

    with Connection(
        f"{home};{spool}", transport_options=options, failover_strategy=strategy
    ) as connection:
        producer = connection.Producer()
        send(there)
        send(here)
        victim.kill()
        send(there)
        assert [spool] == switches
        # For longer than it takes the fail-back to find a cluster that answers.
        stays_true(lambda: send(there) and send(here) and switches == [spool], for_s=4)
        assert 2 < counts(spool, there)["ready"]
        if lost == "queue":
            wait_ready(home, here, sent[here])
        assert [spool] == switches
        restart_one(cluster, victim)
        wait_until(lambda: send(there) and len(switches) > 1, timeout_s=60, interval_s=0.5)
        assert home.split(";")[0] in switches[1]
        for name, number in sent.items():
            wait_ready(home, name, number)
        wait_until(lambda: not any(counts(spool, name) for name in sent), timeout_s=60)
    assert 2 == len(switches)
    assert_balanced(home)


@pytest.mark.slow
def test_one_node_of_a_divided_queue_is_away(bare_cluster, tmp_path, switches):
    """What was not sent goes to another partition: nobody needs the spool."""
    cluster = bare_cluster
    home, spool = cluster.url(), f"reliq-sqlite:///{tmp_path}/spool.db"
    names = partition_names("q", 8)
    with Connection(home) as connection:
        Queue("q", queue_arguments={"x-partitions": 8})(connection.default_channel).declare()
    own, *others = [owner(cluster, queue_key("", name, "meta")) for name in names]
    victim = next(n for n in cluster.masters if n not in (own, owner(cluster, queues(""))))
    assert victim in others
    options = {**FAST, "socket_connect_timeout": 1, "socket_timeout": 2}
    policy = {"max_retries": 20, "interval_start": 0, "interval_max": 0.2}
    with Connection(f"{home};{spool}", transport_options=options) as connection:
        store = connection.default_channel.transport.link.store
        store.partitions["q"] = 8  # it is connected to the anchor alone
        victim.kill()
        producer = connection.Producer()
        for number in range(8):
            producer.publish(number, routing_key="q", retry=True, retry_policy=policy)
        assert [] == switches
        restart_one(cluster, victim)
    wait_ready(home, "q", 8)


def wait_ready(url, queue, number):
    """Wait until so many messages are ready, and no more."""
    with Inspector(url) as inspector:
        wait_until(lambda: inspector.status(queue).ready >= number, timeout_s=60)
        assert number == inspector.status(queue).ready


def restart_one(cluster, node):
    """Start a node again; return when each says that the cluster is whole."""
    node.start()
    cluster.wait_whole(timeout_s=60)
