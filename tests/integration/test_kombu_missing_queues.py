"""Queues that are not there: not to be consumed from, and deleted under those who do."""

from __future__ import annotations

import pytest

from reliq import NotFound

from .kombu_client import Taker, declare, publish


def test_nobody_consumes_from_a_queue_that_is_not_there(client):
    """It is a channel error with AMQP's words, and the channel can be used on."""
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
    """Who listened when it was deleted is counted, gets its messages, and leaves it in order."""
    connection, other = client.connect(), client.connect()
    taker = Taker(connection, "q")
    other.default_channel.queue_delete("q")
    assert ("q", 0, 1) == tuple(other.default_channel.queue_declare("q"))
    publish(other, "q", "x")
    assert ["x"] == taker.take_bodies(1)
    taker.consumer.cancel()
    assert ("q", 0, 0) == tuple(other.default_channel.queue_declare("q"))
