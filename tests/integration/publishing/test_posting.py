"""A publish that does not wait for its reply does not wait for anything else either."""

from __future__ import annotations

import time

import pytest
from kombu import Connection, Exchange, Queue

from reliq.routing import publish_ids
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

FANOUT = Exchange("news", "fanout", auto_delete=False)


def test_a_route_that_has_changed_is_not_waited_for(fresh_redis):
    """A changed route does not block a publish, because a worker publishes events from its loop.

    The loop has to continue while Redis is frozen.
    """
    url = fresh_redis.url()
    options = {"confirm": "none"}
    with Connection(url, transport_options=options) as connection, Connection(url) as other:
        Queue("one", FANOUT)(connection.default_channel).declare()
        producer = connection.Producer(exchange=FANOUT)
        producer.publish(1)
        store = connection.transport.link.store
        store.wait_for_replies()
        two = Queue("two", FANOUT)(other.default_channel)
        two.declare()
        producer.publish(2)  # with outdated bindings: nothing is stored
        wait_until(lambda: other.transport.link.store.bindings_version("news") is not None)
        fresh_redis.freeze()
        try:
            began = time.monotonic()
            producer.publish(3)
            assert time.monotonic() - began < 2
        finally:
            fresh_redis.thaw()

        def found():
            connection.transport.link.store.wait_for_replies()
            connection.transport.publishing.posting.do_duties()
            return store.reads.status("one").ready == 3 and store.reads.status("two").ready == 2

        wait_until(found, what="the messages in both queues")
        assert {2, 3} == {two.get(no_ack=True).payload for _ in range(2)}


def test_the_last_message_by_a_route_that_has_changed_is_sent(fresh_redis):
    """The last message to a changed route is sent before the connection closes.

    A worker's message about its end is such a message.
    """
    url = fresh_redis.url()
    with Connection(url) as other:
        one = Queue("one", FANOUT)(other.default_channel)
        with Connection(url, transport_options={"confirm": "none"}) as connection:
            one.declare()
            producer = connection.Producer(exchange=FANOUT)
            producer.publish(1)
            connection.transport.link.store.wait_for_replies()
            two = Queue("two", FANOUT)(other.default_channel)
            two.declare()
            producer.publish(2)
        assert [1, 2] == [one.get(no_ack=True).payload for _ in range(2)]
        assert 2 == two.get(no_ack=True).payload


@pytest.mark.slow
def test_what_is_only_sent_is_stored_where_its_script_is_not_known(fresh_redis, monkeypatch):
    """A message whose script Redis has lost is sent again and stored, though behind later ones."""
    monkeypatch.setattr(publish_ids, "_FORGET_BITS", 0)  # each publish names settled numbers
    proxy = Proxy(fresh_redis)
    try:
        with Connection(proxy.url(), transport_options={"confirm": "none"}) as connection:
            producer, store = connection.Producer(), connection.transport.link.store
            Queue("q")(connection.default_channel).declare()
            with fresh_redis.client() as client:
                client.script_flush()
            proxy.allow(0)
            store.now_ms()  # the proxy already waits for the next bytes
            producer.publish(1, routing_key="q")
            producer.publish(2, routing_key="q")
            told = proxy.forwarded["replies"]
            while proxy.forwarded["replies"] == told:  # until only the first one is refused
                proxy.allow(16)
                time.sleep(0.01)
            store.receive()  # it is sent again
            producer.publish(3, routing_key="q")
            proxy.allow(None)
            store.wait_for_replies()
            assert 3 == store.reads.status("q").ready
    finally:
        proxy.close()
