"""Probes written for Kombu's Redis transport."""

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
    """`ping` works, and `llen` counts the ready messages of all priorities, not delayed ones."""
    channel = connection.default_channel
    assert channel.client.ping()
    assert 0 == channel.client.llen("q")
    declare(connection, "q")
    for priority in (0, 3, 9):
        publish(connection, "q", "x", priority=priority)
    publish(connection, "q", "later", headers={"x-delay": 60_000})
    with channel.conn_or_acquire() as asked:
        assert 3 == asked.llen("q")
        # Kombu's documentation counts once for each priority, under separate names.
        names = ["q", *(f"q\x06\x16{step}" for step in (3, 6, 9))]
        assert 3 == sum(asked.llen(name) for name in names)
    assert 4 == channel.queue_purge("q")


@pytest.mark.parametrize("name", ["lrange", "keys", "pipeline", "connection_pool"])
def test_other_questions_have_an_answer_that_names_who_knows(connection, name):
    """Other commands raise AttributeError, as for missing methods, and name the alternatives."""
    probe = connection.default_channel.client
    with pytest.raises(AttributeError, match=rf"{name}\(\).*Inspector or the command `reliq`"):
        getattr(probe, name)
    assert not hasattr(probe, name)


def test_a_probe_of_a_broker_that_is_away_fails(redis_factory):
    """A probe of an unreachable broker raises a connection error, as liveness probes expect."""
    server = redis_factory()
    with Connection(server.url("reliq")) as connection:
        probe = connection.default_channel.client
        assert probe.ping()
        server.kill()
        with pytest.raises(BrokerUnavailable):
            probe.ping()


def test_celery_finds_no_socket_in_a_channel(connection):
    """Celery's search for sockets finds none in a channel, and opens no connection.

    Celery would set its own timeout on a socket.
    """
    channel = connection.default_channel
    assert channel.client.ping()
    bound_open_broker_sockets(connection, 0.001)
    assert channel.client.ping()
    assert not {"client", "subclient"} & vars(channel).keys()
