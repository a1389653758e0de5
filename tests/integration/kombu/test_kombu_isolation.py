"""Isolated delivery: the last one before the limit goes to a process without other messages."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest

from tests.support.waiting import wait_until

from ..kombu_client import Client, Taker, declare, get, payloads, publish

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
    """Return a function that consumes from queues with this limit, over its own connection."""

    def start(*queues, **arguments):
        return Taker(
            client.connect(delivery_limit=LIMIT, visibility_timeout=20), *queues, **arguments
        )

    return start


@pytest.mark.slow
def test_it_waits_for_what_the_process_holds(client, consume):
    """An isolated delivery waits until the process holds no message, and excludes others."""
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
    """Isolation covers all connections of a process, because its death affects all of them."""
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
    """A consumer that needs more messages before it acks is blocked for one lease, not for ever."""
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
    """A consumer that the process itself starts during an isolated delivery receives messages."""
    taker = consume("q", prefetch_count=10)
    candidate(client)
    (last,) = taker.take()
    publish(taker.connection, "r", "its own")
    inner = consume("r", prefetch_count=10)
    assert ["its own"] == payloads(inner.take())
    last.ack()


def test_a_process_that_polls_gets_it(client):
    """`basic_get` in a process without messages takes the message at once, and no other."""
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
    """A running message whose lease was lost postpones an isolated delivery: it may kill, too."""
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


# -- a second broker, which dies while this process uses it


@pytest.fixture
def dying(redis_factory):
    """Return a Client of a broker for a test to kill."""
    server = redis_factory()
    other = Client(server, server.url("reliq"))
    yield other
    other.close()
    other.raw.close()


def owes_a_return(dying):
    """Fail to return a message to a dead broker, so that the return stays pending."""
    connection = dying.connect()
    publish(connection, "q", "owed")
    message = get(connection, "q")
    dying.server.kill()
    with pytest.raises(connection.connection_errors):
        message.requeue()


def owes_an_ack(dying):
    """Ack a message of a dead broker, so that the ack stays pending."""
    connection = dying.connect()
    publish(connection, "q", "owed")
    message = get(connection, "q")
    dying.server.kill()
    message.ack()
    # No replies are due if the background loop has already noticed that the broker is gone.
    with suppress(*connection.connection_errors):
        connection.transport.link.store.wait_for_replies()
    assert connection.transport.link.session.outbox.has_unsent


def asked_without_an_answer(dying):
    """Let a reserve time out while the broker is frozen."""
    connection = dying.connect(socket_timeout=0.5, restore_interval=60)
    declare(connection, "q")
    assert get(connection, "q") is None  # also makes a pass over the queue, once per interval
    dying.server.freeze()
    with pytest.raises(connection.connection_errors):
        get(connection, "q")
    dying.server.kill()


def dropped_a_message(dying):
    """Take a message, and drop it unsettled with its connection."""
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
    """Pending reports to a dead broker do not postpone an isolated delivery at another broker."""
    owe(dying)
    candidate(client)
    (last,) = consume("q", prefetch_count=10).take()
    assert "last" == last.payload
    last.ack()


def test_what_a_dead_broker_gave_may_still_run(client, consume, dying):
    """A running message of a dead broker still postpones an isolated delivery at another broker."""
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
