"""A callback that raises: the application has the exception, and the delivery counts."""

from __future__ import annotations

import pytest

from reliq.errors import BrokerUnavailable

from .kombu_client import declare, get, publish


class AsToldError(Exception):
    """What the callback raises."""


def consume(connection, callback, **options):
    """Let *callback* have one message of `q`; return the consumer."""
    queue = declare(connection, "q")
    consumer = connection.Consumer([queue], **options)
    consumer.on_message = callback
    consumer.consume()
    return consumer


def failing(finish=lambda message: None, error=AsToldError):
    """Return a callback that finishes its message, and raises."""

    def callback(message):
        finish(message)
        raise error("as told")

    return callback


def fail_once(client, callback, error=AsToldError, **options):
    """Consume until the callback raises, over a connection of its own that is then closed."""
    connection = client.connect(**options)
    consume(connection, callback)
    with pytest.raises(error):
        connection.drain_events(timeout=5)
    connection.release()


def test_a_callback_that_raises_is_a_failed_delivery(client):
    """When the connection closes, the message goes back, counted."""
    publish(client.connect(), "q", "x")
    fail_once(client, failing())
    fail_once(client, failing())
    message = get(client.connect(), "q")
    assert (2, True) == (message.headers["x-delivery-count"], message.headers["redelivered"])
    message.ack()


def test_it_meets_its_limit(client):
    """The message that no callback can bear becomes a dead letter."""
    publish(client.connect(), "q", "x")
    for _ in range(3):
        fail_once(client, failing(), delivery_limit=3)
    (letter,) = client.dead_letters("q")
    assert ("delivery_limit", 3) == (letter.reason, letter.count)


def test_it_stays_the_application_s(client):
    """Until the channel closes it may still be acknowledged: then nothing has failed."""
    connection = client.connect()
    publish(connection, "q", "x")
    seen = []
    consume(connection, failing(seen.append))
    with pytest.raises(AsToldError):
        connection.drain_events(timeout=5)
    assert 1 == client.status("q").unacked
    seen[0].ack()
    connection.release()
    assert client.settled("q")


@pytest.mark.parametrize("finish", ["ack", "reject", "requeue"])
def test_what_was_finished_before_is_finished(client, finish):
    """A callback that finishes its message and then raises has finished it, once."""
    publish(client.connect(), "q", "x")
    fail_once(client, failing(lambda message: getattr(message, finish)()))
    status = client.status("q")
    expected = {"ack": (0, 0), "reject": (0, 1), "requeue": (1, 0)}[finish]
    assert expected == (status.ready, status.dead)
    if finish == "requeue":
        message = get(client.connect(), "q")
        assert 1 == message.headers["x-delivery-count"]
        message.ack()


def test_others_of_the_channel_are_not_counted(client):
    """What was delivered beside it goes back as it was."""
    connection = client.connect()
    publish(connection, "q", "fine", "bad")

    def callback(message):
        if message.payload == "bad":
            raise AsToldError

    consume(connection, callback)
    connection.drain_events(timeout=5)
    with pytest.raises(AsToldError):
        connection.drain_events(timeout=5)
    connection.release()
    other = client.connect()
    back = [get(other, "q"), get(other, "q")]
    counts = {message.payload: message.headers.get("x-delivery-count") for message in back}
    assert {"fine": None, "bad": 1} == counts


@pytest.mark.parametrize("error", [BrokerUnavailable, KeyboardInterrupt, SystemExit])
def test_what_is_not_the_message_s_fault_is_not_counted(client, error):
    """A lost connection or an interrupt says nothing of the message."""
    publish(client.connect(), "q", "x")
    fail_once(client, failing(error=error), error)
    message = get(client.connect(), "q")
    assert "x-delivery-count" not in message.headers
    message.ack()


def test_a_message_that_nobody_acknowledges_is_gone(client):
    """With no_ack there is nothing to count."""
    connection = client.connect()
    publish(connection, "q", "x")
    consume(connection, failing(), no_ack=True)
    with pytest.raises(AsToldError):
        connection.drain_events(timeout=5)
    connection.release()
    assert client.settled("q")
