"""Consumers at the primary broker fetch what was published to another one of the list."""

from __future__ import annotations

from contextlib import suppress

from kombu import Connection

from reliq.failover.brokers import BROKERS
from tests.support.waiting import wait_until

from ..kombu_client import Taker, declare, publish


def test_a_broker_that_did_not_answer_once(redis_factory):
    """Its messages come soon after it answers, not at the next time for such a visit."""
    first, other = redis_factory(), redis_factory(appendonly=True)
    urls = [server.url() for server in (first, other)]
    with Connection(urls[1]) as connection:
        declare(connection, "q")
        publish(connection, "q", "x")
    other.kill()
    with Connection(urls, transport_options={"probe_interval": 0.2}) as connection:
        declare(connection, "q")
        taker = Taker(connection, "q")
        wait_until(lambda: BROKERS.in_back_off(urls[1]), timeout_s=20, what="the first visit")
        other.start()

        def came():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)
            return taker.messages

        wait_until(came, timeout_s=20, what="the message of the other broker")
        (message,) = taker.messages
        assert "x" == message.payload
        message.ack()
