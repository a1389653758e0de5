"""A reply queue outlives its client's lost connection, however the client reacts."""

from __future__ import annotations

import pytest
from kombu import Connection, Consumer, Queue

from tests.support.audits import assert_balanced
from tests.support.waiting import wait_until


def lose(server):
    """Kill every connection but this one."""
    client = server.client()
    client.client_kill_filter(_type="normal", skipme=True)
    client.close()


def test_who_cancels_over_a_lost_connection_and_comes_back_gets_its_reply(redis_server, redis_url):
    """A client that cancels over a lost connection and returns to its queue gets its reply.

    Celery's rpc:// cancels, closes, connects and consumes from the same queue again.
    """
    taken = []

    def received(body, _message):
        taken.append(body)

    queue = Queue("reply", auto_delete=True, durable=False)
    lost, back = Connection(redis_url), Connection(redis_url)
    consumer = Consumer(lost.default_channel, [queue], callbacks=[received], no_ack=True)
    consumer.consume()
    with pytest.raises(TimeoutError):  # it waits for a notification from now on, like any consumer
        lost.drain_events(timeout=0.1)
    lose(redis_server)
    with Connection(redis_url) as connection:
        connection.Producer().publish("answer", exchange="", routing_key="reply")
    with pytest.raises(lost.connection_errors):
        lost.drain_events(timeout=5)
    try:
        consumer.cancel()
    finally:
        lost.close()
    again = Consumer(back.default_channel, [queue], callbacks=[received], no_ack=True)
    again.consume()
    back.drain_events(timeout=5)
    assert ["answer"] == taken
    again.cancel()
    client = redis_server.client()
    wait_until(lambda: not client.exists("reliq:{reply}:meta"), what="the queue's end")
    client.close()
    back.close()
    assert_balanced(redis_url)
