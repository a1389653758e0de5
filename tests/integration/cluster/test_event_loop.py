"""An event loop over a cluster: the set of watched descriptors changes."""

from __future__ import annotations

import os
from errno import EBADF

import pytest
from kombu import Connection, Queue
from kombu.asynchronous import Hub

from reliq.client.cluster.slots import slot_of
from reliq.client.poll import readable
from reliq.errors import BrokerUnavailable
from reliq.lua.keys import broker_keys, queue_keys
from tests.support.cluster import RedisCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster():
    """Return a cluster of two masters."""
    with RedisCluster(2) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_descriptor_that_is_somebody_elses_by_now(cluster):
    """A descriptor that another thread closed and another file reuses stays with the other file."""
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
            # The replacement connection is watched.
            with Connection(cluster.url()) as other:
                other.Producer().publish({}, routing_key=name, exchange="")
            wait_until(lambda: turns() and got)
    hub.close()


def test_a_descriptor_that_is_closed_before_it_is_watched(cluster, monkeypatch):
    """A connection that another thread closes before it is watched is replaced at the next turn."""
    hub = Hub()
    with Connection(cluster.url()) as connection:
        got = []
        with connection.Consumer([Queue("q")], callbacks=[lambda _, item: got.append(item.ack())]):
            nodes = connection.transport.link.store._wire.nodes

            def closed(fd, _callback):
                for place, wire in nodes.all():
                    nodes.drop(place, wire, BrokerUnavailable("it has been replaced"))
                raise OSError(EBADF, f"descriptor {fd}")  # as long as its number is not reused

            monkeypatch.setattr(hub, "add_reader", closed)
            connection.transport.register_with_event_loop(connection.connection, hub)
            monkeypatch.undo()
            loop = hub.create_loop()
            with Connection(cluster.url()) as other:
                other.Producer().publish({}, routing_key="q", exchange="")
            wait_until(lambda: [next(loop) for _ in range(3)] and got)
    hub.close()


def test_a_turn_runs_one_task_though_several_nodes_have_answered(cluster):
    """A turn runs one task although two nodes have answered, because Celery acks between turns."""
    owner = {cluster.owner(slot_of(queue_keys("", name).meta)): name for name in map(str, range(9))}
    queues, hub, got = [*map(Queue, owner.values())], Hub(), []
    assert 2 == len(queues)
    with Connection(cluster.url()) as connection, connection.channel() as channel:
        for queue in queues:
            queue(channel).declare()
            connection.Producer().publish({}, routing_key=queue.name, exchange="")
        callbacks = [lambda _, item: got.append((turn, item.ack()))]
        with connection.Consumer(queues, callbacks=callbacks):
            connection.transport.register_with_event_loop(connection.connection, hub)
            loop = hub.create_loop()
            connection.transport.loop.on_tick()  # asks both nodes
            fds = connection.transport.link.store.descriptors()
            wait_until(lambda: 2 == len(readable(fds, 0)))
            for turn in range(20):  # noqa: B007 - the callback notes it
                next(loop)
                if 2 == len(got):
                    break
    hub.close()
    assert 2 == len(got) == len({turn for turn, _ in got})
