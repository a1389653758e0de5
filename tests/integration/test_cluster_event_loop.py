"""An event loop over a cluster: the descriptors it watches come and go."""

from __future__ import annotations

import os
from errno import EBADF

import pytest
from kombu import Connection, Queue
from kombu.asynchronous import Hub

from reliq.engines.redis.cluster.slots import slot_of
from reliq.engines.redis.keys import broker_keys, queue_keys
from reliq.errors import BrokerUnavailable
from tests.support.cluster import RedisCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster():
    """Return a cluster of two masters."""
    with RedisCluster(2) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_descriptor_that_is_somebody_elses_by_now(cluster):
    """A connection that another thread has closed: its number may be in use again."""
    anchor = cluster.owner(slot_of(broker_keys("").queues))
    name = next(
        name
        for name in map(str, range(1000))
        if cluster.owner(slot_of(queue_keys("", name).meta)) is not anchor
    )
    hub = Hub()
    with Connection(cluster.url()) as connection:
        got = []
        with connection.Consumer([Queue(name)], callbacks=[lambda _, item: got.append(item.ack())]):
            connection.transport.register_with_event_loop(connection.connection, hub)
            loop = hub.create_loop()
            turns = lambda: [next(loop) for _ in range(3)]  # noqa: E731
            nodes = connection.transport.link.store._wire.nodes

            def watched():
                turns()
                return [
                    wire for _, wire in nodes.all() if wire.alive and wire.fileno() in hub.readers
                ]

            wait_until(lambda: len(watched()) == 2)
            wire = next(wire for place, wire in nodes.all() if place.port != anchor.port)
            number = wire.fileno()
            wire.hang_up(BrokerUnavailable("another thread has found that it was replaced"))
            reader, writer = os.pipe()
            if reader != number:
                os.dup2(reader, number)
                os.close(reader)
            called = []
            hub.add_reader(number, lambda: called.append(os.read(number, 100)))
            for _ in range(3):
                os.write(writer, b"x")
                turns()
            assert 3 == len(called)
            hub.remove_reader(number)
            os.close(number)
            os.close(writer)
            # And the connection that takes its place is watched.
            with Connection(cluster.url()) as other:
                other.Producer().publish({}, routing_key=name, exchange="")
            wait_until(lambda: turns() and got)
    hub.close()


def test_a_descriptor_that_is_closed_before_it_is_watched(cluster, monkeypatch):
    """Another thread has given its connection up in that moment: the next turn watches others."""
    hub = Hub()
    with Connection(cluster.url()) as connection:
        got = []
        with connection.Consumer([Queue("q")], callbacks=[lambda _, item: got.append(item.ack())]):
            nodes = connection.transport.link.store._wire.nodes

            def closed(fd, _callback):
                for place, wire in nodes.all():
                    nodes.drop(place, wire, BrokerUnavailable("it has been replaced"))
                raise OSError(EBADF, f"descriptor {fd}")  # as long as its number is not used anew

            monkeypatch.setattr(hub, "add_reader", closed)
            connection.transport.register_with_event_loop(connection.connection, hub)
            monkeypatch.undo()
            loop = hub.create_loop()
            with Connection(cluster.url()) as other:
                other.Producer().publish({}, routing_key="q", exchange="")
            wait_until(lambda: [next(loop) for _ in range(3)] and got)
    hub.close()
