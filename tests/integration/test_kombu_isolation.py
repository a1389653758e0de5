"""The last delivery before the limit is made to a process that holds nothing else."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest

from tests.support.waiting import wait_until

from .kombu_client import Client, Taker, declare, get, payloads, publish

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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_what_the_broker_has_lost_runs_on(client, consume, caplog):
    """A message without its lease is still worked on, and may still be what kills."""
    connection = client.connect()
    publish(connection, "r", "runs")
    runs = get(connection, "r")
    client.raw.flushall()
    wait_until(lambda: "lease" in caplog.text)
    candidate(client)
    taker = consume("q", prefetch_count=10)
    assert taker.gets_nothing(1.5)
    runs.ack()
    (last,) = taker.take()
    assert "last" == last.payload
    last.ack()


# -- a second broker, which dies while this process has to do with it


@pytest.fixture
def dying(redis_factory):
    """Return a Client of a broker that a test is to kill."""
    server = redis_factory()
    other = Client(server, server.url("reliq"))
    yield other
    other.close()
    other.raw.close()


def owes_a_return(dying):
    """Give back what was taken, when the broker is gone; return what the process has left."""
    connection = dying.connect()
    publish(connection, "q", "owed")
    message = get(connection, "q")
    dying.server.kill()
    with pytest.raises(connection.connection_errors):
        message.requeue()


def owes_an_ack(dying):
    """Finish what was taken, when the broker is gone."""
    connection = dying.connect()
    publish(connection, "q", "owed")
    message = get(connection, "q")
    dying.server.kill()
    message.ack()
    # Nothing to wait for where the background loop has read first that the broker is gone.
    with suppress(*connection.connection_errors):
        connection.transport.link.store.wait_for_replies()
    assert connection.transport.link.session.outbox.has_unsent


def asked_without_an_answer(dying):
    """Ask for a message while the broker is frozen, until the timeout."""
    connection = dying.connect(socket_timeout=0.5, restore_interval=60)
    declare(connection, "q")
    assert get(connection, "q") is None  # also looks after the queue, once in an interval
    dying.server.freeze()
    with pytest.raises(connection.connection_errors):
        get(connection, "q")
    dying.server.kill()


def dropped_a_message(dying):
    """Take a message and forget it unsettled, with its connection."""
    connection = dying.connect()
    publish(connection, "q", "dropped")
    message = get(connection, "q")
    dying.server.kill()
    connection.collect()
    del message
    gc.collect()


@pytest.mark.parametrize(
    "owe",
    [
        owes_a_return,
        owes_an_ack,
        asked_without_an_answer,
        dropped_a_message,
    ],
)
def test_what_is_owed_to_a_dead_broker_runs_no_more(client, consume, dying, owe):
    """Who went over to another broker holds nothing, though it could not tell the first one."""
    owe(dying)
    candidate(client)
    (last,) = consume("q", prefetch_count=10).take()
    assert "last" == last.payload
    last.ack()


def test_what_a_dead_broker_gave_may_still_run(client, consume, dying):
    """Who works on it holds it, whatever became of the broker: until then it is not alone."""
    connection = dying.connect()
    publish(connection, "q", "runs")
    runs = get(connection, "q")
    dying.server.kill()
    connection.collect()
    candidate(client)
    taker = consume("q", prefetch_count=10)
    assert taker.gets_nothing(1.5)
    runs.ack()
    (last,) = taker.take()
    assert "last" == last.payload
    last.ack()
