"""A node refuses a consumer's command, permanently or temporarily."""

from __future__ import annotations

import logging
from contextlib import suppress
from time import monotonic

import pytest
from kombu import Connection, Queue

from reliq.client.cluster.slots import slot_of
from reliq.errors import BrokerRefused
from reliq.lua.keys import queue_keys
from tests.support.cluster import RedisCluster
from tests.support.waiting import wait_until

QUEUES = [f"queue{number}" for number in range(8)]
POLL_S = 1.0


@pytest.fixture(scope="module")
def shared():
    """Return a cluster of two masters."""
    with RedisCluster(2) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared):
    """Return the cluster, empty."""
    for node in shared.masters:
        node.ask("FLUSHALL")
        node.ask("CONFIG", "SET", "min-replicas-to-write", "0")
    return shared


def queue_at(cluster, node):
    """Return a queue at a node."""
    return next(
        name for name in QUEUES if cluster.owner(slot_of(queue_keys("", name).meta)) is node
    )


@pytest.fixture
def consume(cluster):
    """Consume a queue of each node; return names, received bodies, and a drain function."""
    got = []
    names = [queue_at(cluster, node) for node in cluster.masters]
    options = {"poll_interval": POLL_S, "socket_timeout": 5.0}
    with Connection(cluster.url(), transport_options=options) as connection:

        def receive(body, message):
            got.append(body)
            message.ack()

        def drain(seconds):
            ends_at = monotonic() + seconds
            while (left := ends_at - monotonic()) > 0:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=left)

        with connection.Consumer([Queue(name) for name in names], callbacks=[receive]):
            drain(0.5)
            yield names, got, drain


@pytest.mark.slow
def test_a_consumer_hears_of_a_refusal(cluster, consume):
    """A consumer receives a node's refusal as from a single server, without endless retries."""
    (name, _), _, drain = consume
    node = cluster.masters[0]
    ready = queue_keys("", name).ready
    node.ask("DEL", ready)
    node.ask("SET", ready, "no queue")
    with pytest.raises(BrokerRefused, match="WRONGTYPE"):
        drain(20)


@pytest.mark.slow
def test_a_consumer_hears_that_it_may_not_wait(cluster, consume):
    """A consumer that may not wait receives the refusal once and does not reconnect repeatedly."""
    _, _, drain = consume
    node = cluster.masters[0]
    # Those of the background loop: one for posts, and one of the pool.
    wait_until(lambda: len(of_background_loop(node)) >= 2)
    before = connections(node)
    node.ask("ACL", "SETUSER", "default", "-blpop")
    try:
        with pytest.raises(BrokerRefused, match="NOPERM"):
            drain(20)
        assert connections(node) - before < 5
    finally:
        node.ask("ACL", "SETUSER", "default", "+blpop")


def of_background_loop(node):
    """Return the connections of the consumer's background loop to a node."""
    with node.client() as client:
        return [item for item in client.client_list() if item["name"].endswith("/2")]


def connections(node):
    """Return the number of connections that a node has accepted."""
    with node.client() as client:
        return client.info("stats")["total_connections_received"]


def commands(node):
    """Return the number of scripts that a node was requested to run."""
    with node.client() as client:
        stats = client.info("commandstats")
    return sum(
        item["rejected_calls"] + item["calls"] for name, item in stats.items() if "eval" in name
    )


@pytest.mark.slow
def test_a_node_that_cannot_serve_now_is_asked_now_and_then(cluster, consume, caplog):
    """A temporarily refusing node is retried rarely and logged once; other queues are served."""
    (name, other), got, drain = consume
    node = cluster.masters[0]
    with caplog.at_level(logging.ERROR), Connection(cluster.url()) as connection:
        producer = connection.Producer()
        producer.publish("at the node", routing_key=name, exchange="")
        node.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        drain(POLL_S)
        before = commands(node)
        drain(3 * POLL_S)
        assert commands(node) - before < 100
        producer.publish("at the other", routing_key=other, exchange="")
        wait_until(lambda: drain(0.2) or got, timeout_s=20)
        assert ["at the other"] == got
        assert 1 == caplog.text.count(f"cannot reserve messages from {name!r}")
        node.ask("CONFIG", "SET", "min-replicas-to-write", "0")
        wait_until(lambda: drain(0.2) or len(got) > 1, timeout_s=20)
    assert ["at the other", "at the node"] == got
