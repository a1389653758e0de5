"""Temporary queues, and consumers that lost their connection."""

from __future__ import annotations

from uuid import uuid4

import pytest
from kombu import Exchange, Queue

from tests.support.waiting import stays_true, wait_until

from ..kombu_client import Taker, declare, exists, get, idle_for_long, publish


def cut(client):
    """Let the server close all connections of applications."""
    client.raw.client_kill_filter(_type="normal", skipme=True)


def reconnected(connection):
    """Notice that the connection is gone, and reconnect as Kombu and Celery do."""
    with pytest.raises(connection.connection_errors):
        connection.drain_events(timeout=5)
    connection.collect()
    connection.ensure_connection()
    return connection


def vanish(connection):
    """Be silent: stop the background loop and close the connection."""
    connection.transport.link.session.background.stop()
    connection.transport.link.store.close()


def listen(connection, queue):
    """Consume from a private queue, bound to a fanout exchange, as consumers of events do."""
    bound = Queue(queue, Exchange("events", "fanout"), auto_delete=True)
    bound(connection.default_channel).declare()
    return Taker(connection, queue, auto_declare=False, no_ack=True)


@pytest.mark.parametrize("notified", [False, True])
def test_a_loss_between_two_consumers(client, notified):
    """A connection that was cut while nothing consumed over it serves the next consumer."""
    connection, other = client.connect(), client.connect()
    taker = Taker(connection, "first")
    assert taker.gets_nothing()
    declare(other, "second")
    if notified:  # its notification is under way as the consumer ends
        publish(other, "first", "x")
    taker.consumer.cancel()
    cut(client)
    idle_for_long()
    publish(connection, "second", "y")
    assert ["y"] == Taker(connection, "second").take_bodies(1)
    assert int(notified) == client.status("first").ready


def test_what_lost_connections_leave_goes(client):
    """Queues left by lost connections are deleted with their bindings."""
    connection, other = client.connect(), client.connect(socket_timeout=6)
    other.connect()
    for _ in range(4):
        listen(connection, f"events.{uuid4()}")
        cut(client)
        reconnected(connection)
    last = f"events.{uuid4()}"
    listen(connection, last)

    def bound():
        return [queue for queue, *_ in other.default_channel.list_bindings()]

    other.close()
    wait_until(lambda: bound() == [last], what=lambda: str(bound()))
    assert 1 == sum(b"{events." in key and b":meta" in key for key in client.raw.scan_iter())


def test_a_queue_waits_for_its_consumer(client):
    """A temporary queue keeps its messages until its consumer returns, which is counted once."""
    connection, other = client.connect(), client.connect(socket_timeout=6)
    declare(connection, "q", auto_delete=True)
    Taker(connection, "q", auto_declare=False)
    cut(client)
    reconnected(connection)
    other.ensure_connection()
    publish(other, "q", "x")
    again = Taker(connection, "q", auto_declare=False)
    assert ["x"] == again.take_bodies(1)
    assert ("q", 0, 1) == tuple(other.default_channel.queue_declare("q", passive=True))
    again.consumer.cancel()
    assert not exists(other, "q")


def test_one_that_comes_back_sees_no_other_consumer(client):
    """A reconnected process does not count its old consumer, so its mailbox is not in use."""
    connection = client.connect()
    declare(connection, "q", auto_delete=True)
    Taker(connection, "q", auto_declare=False)
    cut(client)
    reconnected(connection)
    channel = connection.default_channel
    assert ("q", 0, 0) == tuple(channel.queue_declare("q", auto_delete=True))
    assert 0 == channel.queue_delete("q", if_unused=True)


def test_a_queue_that_went_meanwhile_is_made_anew(client):
    """A queue deleted in its consumer's absence is recreated with its binding on its return."""
    connection, other = client.connect(), client.connect(socket_timeout=6)
    listen(connection, "q")
    Taker(other, "others")
    vanish(connection)
    wait_until(lambda: not exists(other, "q"))
    wait_until(lambda: not other.default_channel.list_bindings(), what="the end of its binding")
    reconnected(connection)
    again = Taker(connection, "q", auto_declare=False, no_ack=True)
    other.Producer().publish("x", exchange="events")
    assert "x" == again.take()[0].payload


def test_a_living_consumers_queue_is_not_taken(client):
    """The queue of a living consumer is kept when others declare it, even during a reconnection."""
    connection, other = client.connect(orphan_grace=5), client.connect(socket_timeout=6)
    declare(connection, "q", auto_delete=True)
    taker = Taker(connection, "q", auto_declare=False, prefetch_count=1)
    publish(other, "q", "held", "waits")
    taker.take()
    other.default_channel.queue_declare("q", auto_delete=True)
    assert 1 == client.status("q").ready
    vanish(connection)
    other.default_channel.queue_declare("q", auto_delete=True)
    assert (1, 1) == (client.status("q").ready, client.status("q").unacked)
    assert "waits" == get(other, "q", no_ack=True).payload


def test_messages_of_a_queue_that_expires_outlive_its_consumer(client):
    """A queue with x-expires keeps its messages after the loss of its consumer, as in AMQP."""
    connection, other = client.connect(), client.connect(socket_timeout=6)
    declare(connection, "q", expires=60)
    Taker(connection, "q", auto_declare=False)
    Taker(other, "others")
    vanish(connection)
    wait_until(lambda: 0 == client.status("q").consumers)
    publish(other, "q", "x")
    stays_true(lambda: exists(other, "q"), for_s=1)
    declare(other, "q", expires=60)
    assert "x" == get(other, "q", no_ack=True).payload
