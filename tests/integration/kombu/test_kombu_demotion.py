"""Publishers, consumers and background loops of a server that becomes a replica."""

from __future__ import annotations

import pytest

from reliq import BrokerUnavailable
from tests.support.waiting import wait_until

from ..kombu_client import Client, Taker, declare, get, publish


@pytest.fixture
def demoted(redis_factory):
    """Return a Client, and a function that makes its server a replica of another one."""
    server, other = redis_factory(), redis_factory()
    client = Client(server, server.url())

    def demote():
        other.follow(server)
        other.wait_synced()
        client.raw.wait(1, 5000)
        other.promote()
        server.follow(other)
        wait_until(lambda: client.raw.info("replication")["role"] == "slave")

    yield client, demote
    server.promote()
    client.close()
    client.audit()
    client.raw.close()


def test_a_waiting_consumer_is_told(demoted):
    """A wait for a message ends with a connection error, and a reconnection names the reason."""
    client, demote = demoted
    connection = client.connect()
    Taker(connection, "q")
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)
    demote()
    with pytest.raises(connection.recoverable_connection_errors, match=r"UNBLOCKED|READONLY"):
        connection.drain_events(timeout=5)
    connection.collect()
    with pytest.raises(BrokerUnavailable, match="READONLY"):
        connection.transport.establish_connection()
    client.server.promote()
    publish(client.connect(), "q", "x")
    (message,) = Taker(connection, "q").take()
    message.ack()


def test_a_consumer_that_could_not_begin(demoted):
    """A consumer that cannot start on a replica raises a connection error, also in a with block."""
    client, demote = demoted
    connection = client.connect()
    declare(connection, "q")
    channel = connection.default_channel
    demote()
    with pytest.raises(BrokerUnavailable, match="READONLY"), connection:
        channel.basic_consume("q", False, print, "tag")
    client.server.promote()
    publish(client.connect(), "q", "x")
    (message,) = Taker(client.connect(), "q").take()
    message.ack()
    assert 1 == client.status("q").consumers


@pytest.mark.parametrize("state", ["replica", "replica without its master"])
def test_a_publisher_is_told(demoted, state):
    """A publish to a replica raises a connection error, and stores nothing."""
    client, demote = demoted
    connection = client.connect()
    declare(connection, "q")
    if state == "replica without its master":
        client.raw.config_set("replica-serve-stale-data", "no")
        client.raw.replicaof("127.0.0.1", "1")
    else:
        demote()
    with pytest.raises(BrokerUnavailable, match=r"READONLY|MASTERDOWN"):
        publish(connection, "q", "x")
    assert not connection.transport.verify_connection(connection)
    with pytest.raises(BrokerUnavailable, match=r"READONLY|MASTERDOWN"):
        client.connect(client_name="new").transport.establish_connection()
    client.server.promote()
    publish(connection, "q", "y")
    assert "y" == get(connection, "q", no_ack=True).payload


def test_a_background_loop_looks_for_the_master_anew(demoted):
    """A background loop that only posts still reconnects after a change of the server's role."""
    client, demote = demoted
    connection = client.connect(visibility_timeout=3)
    taker = Taker(connection, "q", prefetch_count=1)
    publish(client.connect(), "q", "x")
    (message,) = taker.take()
    background = f"reliq:{connection.transport.link.session.id}"

    def ids():
        listed = client.raw.client_list()
        ours = f"reliq:{connection.transport.link.store.consumer}"
        return {
            entry["id"]
            for entry in listed
            if entry["name"].startswith(background) and not entry["name"].startswith(ours)
        }

    before = wait_until(ids, what="the background loop's connection")
    demote()
    wait_until(
        lambda: ids() and not ids() & before, what="another connection of the background loop"
    )
    client.server.promote()
    # The lease was renewed as soon as a master was reachable.
    message.ack()
    taker.consumer.cancel()
    wait_until(lambda: client.settled("q"))
