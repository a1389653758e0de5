"""The notifier of a cluster: many slots over few connections."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from time import monotonic

import pytest
from kombu import Connection, Queue

from reliq.engines.redis.cluster.slots import slot_of
from reliq.engines.redis.cluster.turns import MOST
from reliq.engines.redis.connect import Address
from reliq.engines.redis.keys import broker_keys, queue_keys
from reliq.engines.urls import store_of
from tests.contract.steps import message
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


def listens(store, queues, *, until, timeout_s=0.6):
    """Wait for notifications of *queues*, as a consumer does, until that of *until* arrives."""
    notifier = store.notifier
    deadline = monotonic() + 30
    while True:
        assert monotonic() < deadline
        notifier.listen(queues, timeout_s)
        notifier.wait(timeout_s)
        store.receive()
        if until in iter(notifier.take_notification, None):
            return


@pytest.mark.slow
def test_more_slots_than_connections(cluster, store):
    """Queues in more slots than connections take turns over the connections."""
    for queue in QUEUES:
        store.publish([message(queue)])
        listens(store, QUEUES, until=queue)
    wait_until(lambda: connections(cluster) <= MOST)


@pytest.mark.slow
def test_a_long_wait_for_few_does_not_keep_turns_from_many(store):
    """A long wait for a worker's mailbox does not block the turns of its queues."""
    notifier = store.notifier

    def waits(queues):
        notifier.listen(queues, 60.0)
        notifier.wait(0.05)
        store.receive()
        return notifier.listening

    wait_until(lambda: waits(QUEUES[:2]))
    left = set(QUEUES[2:])
    store.publish([message(queue) for queue in left])

    def all_heard():
        waits(QUEUES)
        left.difference_update(iter(notifier.take_notification, None))
        return not left

    wait_until(all_heard, timeout_s=50, what=lambda: left)


def test_turns_dial_no_more(cluster, store):
    """Repeated turns use the same connections."""
    store.publish([message(QUEUES[-1])])
    listens(store, QUEUES, until=QUEUES[-1])
    before = connected(cluster)
    for _ in range(2):
        store.publish([message(QUEUES[0]), message(QUEUES[-1])])
        listens(store, QUEUES, until=QUEUES[-1], timeout_s=0.3)
    # Three by the test's own queries, and others if turns differ in their connections per node.
    assert connected(cluster) - before <= 3 + 2 * MOST


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
