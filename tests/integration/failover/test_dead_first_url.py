"""A list whose first URL is unreachable: Kombu calls the transport that it looked up too early.

Kombu evaluates `self.transport.verb(self.connection)` from left to right: it looks up the transport
of the unreachable URL, and then the connection fails over to another URL.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub

from reliq import BrokerUnavailable
from tests.support.audits import assert_balanced
from tests.support.servers import free_port
from tests.support.waiting import wait_until

from ..kombu_client import FAST, Taker, publish

POLICY = {"max_retries": 3, "interval_start": 0, "interval_step": 0, "interval_max": 0}
# Long enough for a broker that answers on a busy machine.
OPTIONS = {**FAST, "socket_timeout": 1.0, "failback": False}


@pytest.fixture(params=["list", "semicolons"])
def connection(request, url):
    """Return a connection to two brokers, of which the first is unreachable."""
    dead = f"reliq://127.0.0.1:{free_port()}/0"
    urls = [dead, url] if request.param == "list" else f"{dead};{url}"
    with Connection(urls, transport_options=dict(OPTIONS)) as connection:
        yield connection


def sizes(connection):
    """Return the number of ready messages in the queue."""
    return connection.default_channel.queue_declare("q", passive=True).message_count


def test_its_channel_publishes(connection):
    """The first channel declares, publishes and retries at the reachable broker."""
    with connection.channel() as channel:
        assert channel.connection is connection.transport
        Queue("q")(channel).declare()
        producer = Producer(channel)
        producer.publish(1, routing_key="q")
        producer.publish(2, routing_key="q", retry=True, retry_policy=POLICY)
        assert 2 == sizes(connection)


def test_a_first_publish_with_retry(connection):
    """A retried publish as a channel's first operation reaches the reachable broker."""
    with connection.channel() as channel:
        Producer(channel).publish(1, routing_key="q", retry=True, retry_policy=POLICY)
    assert 1 == sizes(connection)


def test_a_producer_over_the_connection(connection):
    """A producer that makes its own channel from the connection uses the reachable broker."""
    connection.Producer().publish(1, routing_key="q", retry=True, retry_policy=POLICY)
    assert 1 == sizes(connection)


def test_a_batch(connection):
    """A batch as a channel's first operation is published to the reachable broker."""
    with connection.channel() as channel:
        producer = Producer(channel)
        with producer.batch():
            for number in range(3):
                producer.publish(number, routing_key="q", retry=True, retry_policy=POLICY)
    assert 3 == sizes(connection)


def test_its_consumer_is_served(connection):
    """A consumer on the first channel receives its messages."""
    got = []
    with connection.channel() as channel:
        consumer = Consumer(channel, [Queue("q")], on_message=got.append)
        consumer.consume()
        Producer(channel).publish(1, routing_key="q")
        connection.drain_events(timeout=5)
        assert [1] == [message.payload for message in got]
        got.pop().ack()


def test_drain_events_is_that_of_the_connection(connection):
    """Waiting for messages as the first operation waits at the reachable broker."""
    with pytest.raises(TimeoutError, match="no message within the timeout"):
        connection.drain_events(timeout=0.05)
    assert connection.connected


def test_the_loop_drives_the_connection(connection):
    """The first operation may register the reachable broker's transport with an event loop."""
    hub = Hub()
    got = []
    try:
        connection.register_with_event_loop(hub)
        channel = connection.channel()
        Consumer(channel, [Queue("q")], on_message=got.append).consume()
        Producer(channel).publish(1, routing_key="q")
        loop = hub.create_loop()
        hub.call_repeatedly(0.05, lambda: None)

        def turned():
            next(loop)
            return got

        wait_until(turned, interval_s=0)
        got.pop().ack()
        next(loop)
        connection.transport.unregister_from_event_loop(connection.connection, hub)
    finally:
        connection.release()
        hub.close()


def test_what_has_no_broker(connection):
    """The other verbs that Kombu calls in this way return a value and change nothing."""
    assert 0 == connection.get_heartbeat_interval()
    assert connection.heartbeat_check() is None
    assert connection.qos_semantics_matches_spec
    assert connection.connected


def test_a_consumer_left_behind_is_told(redis_factory, redis_url):
    """A consumer whose broker died receives an error, even if another thread saw the loss first.

    Otherwise Kombu would continue at the next URL before it waits for messages, without a consumer
    there.
    """
    first = redis_factory()
    options = {**OPTIONS, "failback": False}
    with Connection([first.url(), redis_url], transport_options=options) as connection:
        lost = Taker(connection, "q")
        store = connection.transport.link.store
        first.stop()

        def look():
            with suppress(BrokerUnavailable):
                store.receive()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert not store.alive
        with pytest.raises(BrokerUnavailable, match="consume again"):
            connection.drain_events(timeout=5)
        publish(connection, "q", "x")
        assert ["x"] == Taker(connection, "q").take_bodies(1)
        assert [] == lost.messages
    assert_balanced(redis_url, {})


@pytest.mark.parametrize("strategy", ["primary", "healthiest"])
def test_the_other_broker_is_not_of_reliq(redis_factory, strategy):
    """A list may continue with Kombu's own transport: the connection fails over to it."""
    server = redis_factory()
    urls = [f"reliq://127.0.0.1:{free_port()}/0", server.url("redis")]
    with Connection(urls, failover_strategy=strategy, transport_options=OPTIONS) as connection:
        producer = Producer(connection.channel())
        queue = Queue("q")
        producer.publish("there", routing_key="q", declare=[queue], retry=True, retry_policy=POLICY)
        assert "redis" == connection.transport.driver_type
        assert "there" == queue(connection.channel()).get().payload


def test_a_connection_that_waits_for_replies_returns(redis_factory, redis_url):
    """A connection that publishes nothing gets replies from the first broker when it answers.

    Celery's remote control waits for replies over one connection and publishes over another.
    """
    first = redis_factory()
    first.kill()
    replies = Queue("replies", Exchange("answers"), "here", auto_delete=True)
    urls = f"{first.url('reliq')};{redis_url}"
    options = {"probe_interval": 0.2}
    with (
        Connection(urls, transport_options=options) as asking,
        Connection(first.url("reliq")) as answering,
    ):

        def answered():
            got = []
            with asking.Consumer([replies], on_message=got.append, no_ack=True):
                if first.running:
                    answering.Producer().publish(
                        1, "here", exchange="answers", declare=[Exchange("answers")]
                    )
                with suppress(TimeoutError):
                    asking.drain_events(timeout=0.2)
            return got

        assert [] == answered()
        first.start()
        wait_until(answered, timeout_s=20)
