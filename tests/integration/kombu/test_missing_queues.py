"""Missing queues: they cannot be consumed from, or are deleted while they have consumers."""

from __future__ import annotations

import pytest

from reliq import NotFound

from ..kombu_client import Taker, declare, publish


def test_nobody_consumes_from_a_queue_that_is_not_there(client):
    """Consuming from a missing queue is AMQP's channel error, and the channel stays usable."""
    connection = client.connect()
    declare(connection, "q")
    taker = Taker(connection, "q")
    client.connect().default_channel.queue_delete("gone")
    with pytest.raises(connection.channel_errors, match=r"^NOT_FOUND - no queue 'gone'") as caught:
        Taker(connection, "gone", auto_declare=False, channel=taker.channel)
    assert isinstance(caught.value, NotFound)
    assert 404 == caught.value.code
    publish(connection, "q", "x")
    assert ["x"] == taker.take_bodies(1)


def test_a_queue_that_is_made_anew_has_its_consumers(client):
    """A consumer of a deleted queue is counted in the recreated queue and receives its messages."""
    connection, other = client.connect(), client.connect()
    taker = Taker(connection, "q")
    other.default_channel.queue_delete("q")
    assert ("q", 0, 1) == tuple(other.default_channel.queue_declare("q"))
    publish(other, "q", "x")
    assert ["x"] == taker.take_bodies(1)
    taker.consumer.cancel()
    assert ("q", 0, 0) == tuple(other.default_channel.queue_declare("q"))
