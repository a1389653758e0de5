"""Probes that were written for Kombu's Redis transport."""

from __future__ import annotations

import pytest
from celery.utils.threads import bound_open_broker_sockets
from kombu import Connection

from reliq.errors import BrokerUnavailable
from tests.integration.kombu_client import declare, publish


@pytest.fixture
def connection(client):
    """Return a connection."""
    return client.connect()


def test_a_probe_is_answered(connection):
    """`ping`, and the ready messages of a queue, whatever their priority and none that waits."""
    channel = connection.default_channel
    assert channel.client.ping()
    assert 0 == channel.client.llen("q")
    declare(connection, "q")
    for priority in (0, 3, 9):
        publish(connection, "q", "x", priority=priority)
    publish(connection, "q", "later", headers={"x-delay": 60_000})
    with channel.conn_or_acquire() as asked:
        assert 3 == asked.llen("q")
        # As Kombu's docs count: once for each priority, under names of its own.
        names = ["q", *(f"q\x06\x16{step}" for step in (3, 6, 9))]
        assert 3 == sum(asked.llen(name) for name in names)
    assert 4 == channel.queue_purge("q")


@pytest.mark.parametrize("name", ["lrange", "keys", "pipeline", "connection_pool"])
def test_other_questions_have_an_answer_that_names_who_knows(connection, name):
    """An AttributeError, as of a client that has no such method."""
    probe = connection.default_channel.client
    with pytest.raises(AttributeError, match=rf"{name}\(\).*Inspector or the command `reliq`"):
        getattr(probe, name)
    assert not hasattr(probe, name)


def test_a_probe_of_a_broker_that_is_away_fails(redis_factory):
    """With a connection error, as a liveness probe expects."""
    server = redis_factory()
    with Connection(server.url("reliq")) as connection:
        probe = connection.default_channel.client
        assert probe.ping()
        server.kill()
        with pytest.raises(BrokerUnavailable):
            probe.ping()


def test_celery_finds_no_socket_in_a_channel(connection):
    """It would set a timeout of its own on it; it looks without dialling anew."""
    channel = connection.default_channel
    assert channel.client.ping()
    bound_open_broker_sockets(connection, 0.001)
    assert channel.client.ping()
    assert not {"client", "subclient"} & vars(channel).keys()
