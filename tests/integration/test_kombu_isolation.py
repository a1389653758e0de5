"""The last delivery before the limit is made to a process that holds nothing else."""

from __future__ import annotations

import pytest

from .kombu_client import Taker, declare, get, payloads, publish

LIMIT = 3


def candidate(client, queue="q"):
    """Leave a message in *queue* whose next failure is its last."""
    connection = client.connect()
    publish(connection, queue, "last")
    for _ in range(LIMIT - 1):
        get(connection, queue).requeue()
    connection.release()


@pytest.fixture
def consume(client):
    """Return a function that consumes from queues with this limit, over a connection of its own."""

    def start(*queues, **arguments):
        return Taker(
            client.connect(delivery_limit=LIMIT, visibility_timeout=20), *queues, **arguments
        )

    return start


def test_it_waits_for_what_the_process_holds(client, consume):
    """Of whatever queue: until then nothing else is taken, and nothing with it until it is done."""
    taker = consume("q", "r", prefetch_count=10)
    publish(taker.connection, "r", "held")
    (held,) = taker.take()
    candidate(client)
    publish(taker.connection, "r", "after", "after")
    assert taker.gets_nothing(1.5)
    assert ["held"] == payloads(taker.messages)
    held.ack()
    (last,) = taker.take()
    assert "last" == last.payload
    assert taker.gets_nothing(1.5)
    assert 2 == client.status("r").ready
    last.ack()
    assert ["after", "after"] == payloads(taker.take(2))


def test_other_connections_of_the_process_wait_too(client, consume):
    """What kills one kills the other."""
    first, second = consume("q", prefetch_count=10), consume("r", prefetch_count=10)
    candidate(client)
    (last,) = first.take()
    publish(first.connection, "r", "after")
    assert second.gets_nothing(1.5)
    assert 1 == client.status("r").ready
    last.ack()
    assert ["after"] == payloads(second.take())


def test_who_cannot_become_free_goes_on(client):
    """Who acks nothing before it has more waits for one lease at first, not for ever."""
    connection = client.connect(delivery_limit=LIMIT, visibility_timeout=3)
    taker = Taker(connection, "q", prefetch_count=10)
    publish(connection, "q", "first")
    taker.take()
    candidate(client)
    publish(connection, "q", "second")
    taker.take()
    publish(connection, "q", "third")
    assert taker.gets_nothing(1.5)
    taker.take(timeout_s=10)
    assert ["first", "second", "third"] == payloads(taker.messages)
    for message in taker.messages:
        message.ack()
    (last,) = taker.take(timeout_s=10)
    assert "last" == last.payload
    last.ack()


def test_what_it_consumes_itself_it_may(client, consume):
    """A consumer that began after it was given is its own doing."""
    taker = consume("q", prefetch_count=10)
    candidate(client)
    (last,) = taker.take()
    publish(taker.connection, "r", "its own")
    inner = consume("r", prefetch_count=10)
    assert ["its own"] == payloads(inner.take())
    last.ack()


def test_a_process_that_polls_gets_it(client):
    """`basic_get` by a process that holds nothing takes it at once, and nothing beside it."""
    candidate(client)
    connection = client.connect(delivery_limit=LIMIT)
    declare(connection, "r")
    publish(connection, "r", "other")
    last = get(connection, "q")
    assert "last" == last.payload
    assert connection.default_channel.basic_get("r") is None
    last.ack()
    other = get(connection, "r")
    assert "other" == other.payload
    other.ack()
