"""The notifier of a cluster: many slots over few connections."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from time import monotonic

import pytest
from kombu import Connection, Queue

from reliq.client.cluster.slots import slot_of
from reliq.client.connect import Address
from reliq.lua.keys import broker_keys, queue_keys
from reliq.store.cluster.notifier import MOST
from reliq.store.urls import store_of
from tests.support.cluster import RedisCluster
from tests.support.waiting import wait_until

QUEUES = [f"queue{number}" for number in range(3 * MOST)]


@pytest.fixture
def store(cluster):
    """Return a store over the cluster."""
    cluster.flush()
    store = store_of(cluster.url(), None, "s/1")
    store.connect()
    yield store
    store.close()


def connections(cluster):
    """Return the number of the nodes' connections for notifications."""
    found = 0
    for node in cluster.masters:
        with node.client() as client:
            found += sum("notification" in item["name"] for item in client.client_list())
    return found


def connected(cluster):
    """Return the number of connections that the nodes have accepted so far."""
    found = 0
    for node in cluster.masters:
        with node.client() as client:
            found += client.info("stats")["total_connections_received"]
    return found


def waits(store, queues):
    """Wait briefly for notifications of *queues*; return those that are polled instead."""
    store.notifier.listen(queues, 60.0)
    store.notifier.wait(0.05)
    store.receive()
    return store.notifier._unheard


def test_queues_beyond_the_connections_are_polled(cluster):
    """A consumer of more slots than connections receives from each within a poll interval."""
    cluster.flush()
    options = {"poll_interval": 0.5}
    with Connection(cluster.url(), transport_options=options) as connection:
        received = []
        consumer = connection.Consumer(list(map(Queue, QUEUES)), no_ack=True)
        consumer.register_callback(lambda body, _: received.append(body))
        with consumer:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.5)
            notifier = connection.transport.link.store.notifier
            assert len(QUEUES) - MOST <= len(notifier._unheard)
            producer = connection.Producer()
            for queue in QUEUES:
                producer.publish(queue, routing_key=queue, exchange="")
            while len(received) < len(QUEUES):
                connection.drain_events(timeout=20)
        assert sorted(QUEUES) == sorted(received)
        assert connections(cluster) <= MOST


def test_a_slot_keeps_its_connection(cluster, store):
    """Waits for some of the queues in turn, and for all, open no further connections."""
    rest = waits(store, QUEUES)
    heard = sorted(set(QUEUES) - rest)
    wait_until(lambda: waits(store, QUEUES) == rest and connections(cluster) == MOST)
    before = connected(cluster)
    for few in (heard[:2], QUEUES[:2], sorted(rest)[:2]):
        assert set(few) & rest == waits(store, few)
        assert rest == waits(store, QUEUES)
    assert 3 == connected(cluster) - before  # by the test's own queries


def test_a_forgotten_slot_gives_its_connection_away(store, monkeypatch):
    """A slot that is no longer waited for leaves its connection to one that is."""
    rest = waits(store, QUEUES)
    assert rest
    monkeypatch.setattr("reliq.store.cluster.notifier._FORGOTTEN_S", 0.0)
    few = sorted(rest)[:2]
    assert not waits(store, few)
    wait_until(lambda: not waits(store, few) and store.notifier.listening)


def one_at_each(cluster):
    """Return a queue at each node except the node of the keys outside queues."""
    anchor = cluster.owner(slot_of(broker_keys("").queues))
    found = {}
    for name in QUEUES:
        node = cluster.owner(slot_of(queue_keys("", name).meta))
        if node is not anchor:
            found.setdefault(node.port, name)
    return list(found.values())


def test_a_message_costs_no_connection(cluster):
    """A message opens no connection, even while the other queues are waited for."""
    names = one_at_each(cluster)
    with Connection(cluster.url()) as connection, Connection(cluster.url()) as other:
        wanted = [Queue(name) for name in names]
        with connection.Consumer(wanted, callbacks=[lambda _, item: item.ack()]):
            producer = other.Producer()

            def one():
                producer.publish({}, routing_key=names[0], exchange="")
                connection.drain_events(timeout=20)

            one()
            before = connected(cluster)
            for _ in range(50):
                one()
            # Connections of the test's queries and of the background loop; not one for each
            # message.
            assert connected(cluster) - before <= 5 * len(cluster.masters)


@pytest.mark.slow
def test_a_node_that_is_lost_is_dialled_now_and_then():
    """A lost node is dialled rarely while a consumer waits for messages of other nodes."""
    extra = ["--cluster-require-full-coverage", "no"]
    cluster = RedisCluster(3, extra=extra).start()
    try:
        names = one_at_each(cluster)
        with Connection(cluster.url()) as connection:
            wanted = [Queue(name) for name in names]
            with connection.Consumer(wanted, callbacks=[lambda _, item: item.ack()]):
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.5)
                cluster.owner(slot_of(queue_keys("", names[0]).meta)).kill()
                with dials() as counted:
                    until = monotonic() + 5
                    while monotonic() < until:
                        with suppress(TimeoutError):
                            connection.drain_events(timeout=1)
        # Remains of earlier tests in this process dial as well, but other servers.
        ports = {node.port for node in cluster.masters}
        assert len([dialled for dialled in counted if dialled.port in ports]) < 60
    finally:
        cluster.destroy()


@contextmanager
def dials():
    """Collect every attempt of this process to open a connection."""
    found = []
    connect = Address.connect

    def counted(self, *args, **kwargs):
        found.append(self)
        return connect(self, *args, **kwargs)

    Address.connect = counted
    try:
        yield found
    finally:
        Address.connect = connect
