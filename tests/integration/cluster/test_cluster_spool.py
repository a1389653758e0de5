"""A spool after a cluster: publishers use it until all required nodes answer."""

from __future__ import annotations

import pytest
from kombu import Connection, Exchange, Queue

from reliq.admin import Inspector
from reliq.client.cluster.slots import slot_of
from reliq.lua.keys import broker_keys, queue_key
from reliq.message.queue_names import partition_names
from reliq.signals import broker_switched
from tests.integration.spool.test_spool import FAST, SETTINGS, counts, spooled_in
from tests.support.audits import assert_balanced
from tests.support.cluster import RedisCluster
from tests.support.commands import run
from tests.support.site import CelerySite
from tests.support.waiting import stays_true, wait_until


@pytest.fixture
def cluster():
    """Return a cluster of two masters that keep confirmed data."""
    cluster = RedisCluster(2, appendonly=True)
    try:
        yield cluster.start()
    finally:
        cluster.destroy()


def restart(cluster):
    """Start all nodes again; return when each reports a complete cluster."""
    for node in cluster.nodes:
        node.start()
    cluster.wait_whole(timeout_s=60)


@pytest.mark.slow
def test_a_cluster_is_away(cluster, tmp_path):
    """While all nodes are down, publishes go to the spool, and are forwarded after the return."""
    home, path = cluster.url(), tmp_path / "spool.db"
    options = {**FAST, "socket_connect_timeout": 1, "socket_timeout": 3}
    settings = {**SETTINGS, "broker_transport_options": options}
    site = CelerySite(cluster, "reliq", tmp_path, settings)
    site.broker = f"{home};reliq-spool:///{path}"
    queues = ("celery", "red")
    try:
        for name in queues:
            site.send("record_late", queue=name)
            assert {"ready": 1} == counts(home, name)
        for node in cluster.nodes:
            node.kill()
        sent = [site.send("record_late", queue=name).id for name in (*queues, *queues)]
        assert 4 == spooled_in(path)
        restart(cluster)
        wait_until(lambda: 0 == spooled_in(path), timeout_s=90)
        assert [{"ready": 3}] * 2 == [counts(home, name) for name in queues]
        site.worker(pool="solo", queues=queues)
        for task in sent:
            site.journal.wait_finished(task, timeout_s=60)
        assert {1} == set(site.journal.started().values())
        assert_balanced(home)
    finally:
        site.close()


@pytest.fixture
def switches():
    """Return the targets of failovers and failbacks, in order."""
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
@pytest.mark.parametrize(("strategy", "lost"), [("round-robin", "queue"), ("primary", "anchor")])
def test_one_node_is_away(bare_cluster, tmp_path, switches, strategy, lost):
    """A publisher that needs a lost node stays at the spool until its return; no duplicates."""
    cluster = bare_cluster
    anchor = owner(cluster, broker_keys("").queues)
    victim = next(node for node in cluster.masters if (node is anchor) == (lost == "anchor"))
    nodes = {name: owner(cluster, queue_key("", name, "meta")) for name in map(str, range(100))}
    there = next(name for name, node in nodes.items() if node is victim)
    here = next(name for name, node in nodes.items() if node is not victim)
    home, path = cluster.url(), tmp_path / "spool.db"
    spool = f"reliq-spool:///{path}"
    options = {**FAST, "socket_connect_timeout": 1, "socket_timeout": 2}
    policy = {"max_retries": 20, "interval_start": 0, "interval_max": 0.2}
    sent = {there: 0, here: 0}

    def send(name):
        queue = Queue(name, Exchange("e", "direct"), name)
        route = {"exchange": queue.exchange, "routing_key": name, "declare": [queue]}
        if lost == "queue":
            route = {"routing_key": name}  # no binding is involved: this node suffices
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
        # For longer than a failback takes to find a reachable cluster.
        stays_true(lambda: send(there) and send(here) and switches == [spool], for_s=4)
        assert spooled_in(path) >= sent[there] - 1
        if lost == "queue":
            forwarded = run(None, "spool", "forward", path, "--url", home)
            assert (2, True) == (forwarded.returncode, "is not reachable" in forwarded.stderr)
            # The lost node delays only its own messages.
            assert sent[there] - 1 == spooled_in(path)
            with Inspector(home) as inspector:
                assert sent[here] == inspector.status(here).ready
        restart_one(cluster, victim)
        wait_until(lambda: send(there) and len(switches) > 1, timeout_s=60, interval_s=0.5)
        assert home.split(";")[0] in switches[1]
        wait_until(lambda: 0 == spooled_in(path), timeout_s=60)
        for name, number in sent.items():
            wait_ready(home, name, number)
    assert 2 == len(switches)
    assert_balanced(home)


@pytest.mark.slow
def test_one_node_of_a_divided_queue_is_away(bare_cluster, tmp_path, switches):
    """A message for a lost node's partition goes to another partition, without the spool."""
    cluster = bare_cluster
    home, spool = cluster.url(), f"reliq-spool:///{tmp_path}/spool.db"
    names = partition_names("q", 8)
    with Connection(home) as connection:
        Queue("q", queue_arguments={"x-partitions": 8})(connection.default_channel).declare()
    own, *others = [owner(cluster, queue_key("", name, "meta")) for name in names]
    victim = next(
        n for n in cluster.masters if n not in (own, owner(cluster, broker_keys("").queues))
    )
    assert victim in others
    options = {**FAST, "socket_connect_timeout": 1, "socket_timeout": 2}
    policy = {"max_retries": 20, "interval_start": 0, "interval_max": 0.2}
    with Connection(f"{home};{spool}", transport_options=options) as connection:
        store = connection.default_channel.transport.link.store
        store.partitions["q"] = 8  # it is connected to the anchor only
        victim.kill()
        producer = connection.Producer()
        for number in range(8):
            producer.publish(number, routing_key="q", retry=True, retry_policy=policy)
        assert [] == switches
        restart_one(cluster, victim)
    wait_ready(home, "q", 8)


def wait_ready(url, queue, number):
    """Wait until exactly *number* messages are ready."""
    with Inspector(url) as inspector:
        wait_until(lambda: inspector.status(queue).ready >= number, timeout_s=60)
        assert number == inspector.status(queue).ready


def restart_one(cluster, node):
    """Start a node again; return when each node reports a complete cluster."""
    node.start()
    cluster.wait_whole(timeout_s=60)
