"""Redis restarts without data: consumers and publishers of Kombu recover without help."""

from __future__ import annotations

import logging
import time

import pytest
from kombu import Consumer, Exchange, Queue

from tests.support.waiting import wait_until

from ..kombu_client import Client, Taker, declare, publish
from .test_kombu_faults import settled_or_drained, take_anyhow


@pytest.fixture
def own(fresh_redis):
    """Return a Client of its own server."""
    client = Client(fresh_redis, fresh_redis.url())
    yield client
    client.close()
    client.audit()


def test_a_publisher_binds_anew(own):
    """A publisher redeclares its exchange, queue and binding, so that no message is dropped."""
    connection = own.connect()
    exchange = Exchange("shop", type="topic")
    queue = Queue("orders", exchange, routing_key="order.#")
    producer = connection.Producer()
    producer.publish(1, exchange=exchange, routing_key="order.new", declare=[queue])
    for number in (2, 3):
        own.server.restart()
        if number == 3:
            connection.collect()  # as Kombu does with a lost connection
        producer.publish(number, exchange=exchange, routing_key="order.new", retry=True)
    assert 1 == own.status("orders").ready
    (message,) = Taker(connection, "orders", auto_declare=False).take()
    assert 3 == message.payload
    message.ack()


def test_a_consumer_reports_its_leases_and_goes_on(own, caplog):
    """A consumer redeclares its queue and logs each lost lease once; late acks have no effect."""
    connection = own.connect(visibility_timeout=3)
    taker = Taker(connection, "q", prefetch_count=3)
    declare(connection, "q")
    publish(own.connect(), "q", "x", "y")
    x, y = taker.take(2)
    with caplog.at_level(logging.WARNING, "reliq"):
        own.server.restart()
        publish(own.connect(), "q", "z")
        (z,) = take_anyhow(connection, taker)
        wait_until(lambda: caplog.text.count("lease lost") == 2)
    for message in (x, y, z):
        message.ack()
    wait_until(lambda: settled_or_drained(own, connection))
    assert ["x", "y", "z"] == [message.payload for message in taker.messages]
    assert 1 == own.status("q").ledger["acked"]
    assert 2 == caplog.text.count("lease lost")


def test_a_queue_without_acks_is_missed_soon(client):
    """After FLUSHALL, the queue of a consumer without acks is redeclared within seconds.

    A check finds it missing; heartbeats come only every 20 s.
    """
    connection = client.connect(visibility_timeout=60, restore_interval=0.5)
    Taker(connection, "q")
    mailbox = Queue("mailbox", Exchange("all", "fanout"), auto_delete=True)
    heard = []
    with Consumer(connection, [mailbox], no_ack=True, on_message=heard.append):
        time.sleep(3)  # after the initial heartbeats: the next one is in 20 s
        client.raw.flushall()
        wait_until(lambda: client.raw.exists("reliq:{mailbox}:meta"))
        client.connect().Producer().publish("ping", exchange="all")
        connection.drain_events(timeout=5)
    assert ["ping"] == [message.payload for message in heard]
