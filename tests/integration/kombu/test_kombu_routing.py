"""Routing: direct, topic, fanout and anonymous exchanges, and unroutable messages."""

from __future__ import annotations

import logging

import pytest
from kombu import Exchange, Queue

from ..kombu_client import Taker, declare, get, publish


def bound(connection, exchange, **keys):
    """Declare a queue for each keyword, bound with its key or keys."""
    for name, bindings in keys.items():
        for key in [bindings] if isinstance(bindings, str) else bindings:
            Queue(name, exchange, key)(connection.default_channel).declare()


def reached(connection, exchange, routing_key, queues):
    """Publish once, and return the names of the queues that received a copy."""
    connection.Producer().publish("x", exchange=exchange, routing_key=routing_key)
    found = set()
    for queue in queues:
        while message := get(connection, queue):
            assert queue not in found, "two copies in one queue"
            message.ack()
            found.add(queue)
    return found


def test_direct(client):
    """A direct exchange routes to every queue bound with the same key."""
    connection = client.connect()
    bound(connection, Exchange("x", "direct"), one="a", two="a", three="b")
    assert reached(connection, "x", "a", ["one", "two", "three"]) == {"one", "two"}
    assert reached(connection, "x", "b", ["one", "two", "three"]) == {"three"}
    assert reached(connection, "x", "a.b", ["one", "two", "three"]) == set()


TOPICS = {
    "exact": "a.b.c",
    "star": "a.*.c",
    "star_end": "a.*",
    "hash_end": "a.#",
    "hash": "#",
    "hash_mid": "a.#.c",
    "hash_begin": "#.c",
    "both": "*.#",
    "dollar": "a.$b",
}


@pytest.mark.parametrize(
    ("routing_key", "expected"),
    [
        ("a.b.c", {"exact", "star", "hash_end", "hash", "hash_mid", "hash_begin", "both"}),
        ("a.b", {"star_end", "hash_end", "hash", "both"}),
        ("a.c", {"star_end", "hash_end", "hash", "hash_mid", "hash_begin", "both"}),
        ("a.x.y.c", {"hash_end", "hash", "hash_mid", "hash_begin", "both"}),
        ("a", {"hash_end", "hash", "both"}),
        ("c", {"hash", "hash_begin", "both"}),
        ("ab.c", {"hash", "hash_begin", "both"}),
        ("a.$b", {"star_end", "hash_end", "hash", "both", "dollar"}),
    ],
)
def test_topic(client, routing_key, expected):
    """In a topic binding, * matches exactly one word and # any number of words, including none."""
    connection = client.connect()
    bound(connection, Exchange("x", "topic"), **TOPICS)
    assert reached(connection, "x", routing_key, TOPICS) == expected


def test_topic_two_bindings_one_copy(client):
    """A queue that matches by two bindings receives one copy."""
    connection = client.connect()
    bound(connection, Exchange("x", "topic"), q=["a.*", "#"])
    assert reached(connection, "x", "a.b", ["q"]) == {"q"}


def test_fanout(client):
    """A fanout exchange stores a copy in every bound queue, for any key."""
    connection = client.connect()
    bound(connection, Exchange("x", "fanout"), one="", two="ignored", three="")
    declare(connection, "unbound")
    queues = ["one", "two", "three", "unbound"]
    assert reached(connection, "x", "any", queues) == {"one", "two", "three"}


def test_fanout_kept_while_the_consumer_is_away(client):
    """A broadcast waits in the queue of a disconnected consumer."""
    connection = client.connect()
    bound(connection, Exchange("x", "fanout"), away="")
    connection.release()
    sender = client.connect()
    sender.Producer().publish("missed", exchange=Exchange("x", "fanout"))
    (message,) = Taker(client.connect(), "away", auto_declare=False).take()
    assert message.payload == "missed"
    message.ack()


def test_fanout_to_live_consumers(client):
    """Each of two consumers of a broadcast receives its own copy."""
    sender = client.connect()
    bound(sender, Exchange("x", "fanout"), one="", two="")
    takers = [Taker(client.connect(), name, auto_declare=False) for name in ("one", "two")]
    sender.Producer().publish("all", exchange="x", routing_key="")
    for taker in takers:
        assert taker.take_bodies(1) == ["all"]


def test_anonymous_exchange(client):
    """The anonymous exchange routes to the queue named by the routing key."""
    connection = client.connect()
    declare(connection, "one")
    declare(connection, "two")
    assert reached(connection, "", "two", ["one", "two"]) == {"two"}


@pytest.mark.parametrize(("kind", "key"), [("topic", "a.b"), ("fanout", "")])
def test_a_publisher_that_never_declared_the_exchange(client, kind, key):
    """A publisher that did not declare an exchange uses its declared type."""
    bound(client.connect(), Exchange("x", kind), q="a.#" if kind == "topic" else "")
    publisher = client.connect()
    assert reached(publisher, "x", key, ["q"]) == {"q"}


def test_bindings_made_later_are_seen(client):
    """A publisher with cached routes uses a later binding made by another connection."""
    publisher, other = client.connect(), client.connect()
    bound(publisher, Exchange("x", "direct"), one="k")
    assert reached(publisher, "x", "k", ["one"]) == {"one"}
    bound(other, Exchange("x", "direct"), two="k")
    assert reached(publisher, "x", "k", ["one", "two"]) == {"one", "two"}


def test_unroutable_is_dropped_by_default(client, caplog):
    """An unroutable message is dropped, with one warning per process that names exchange and key.

    A late reply to a mailbox is dropped without a warning.
    """
    with caplog.at_level(logging.WARNING, logger="reliq"):
        for number in range(2):
            connection = client.connect()
            for name in ("lonely", "reply.celery.pidbox"):
                Exchange(name, "direct")(connection.default_channel).declare()
            connection.Producer().publish("x", exchange="lonely", routing_key="nobody")
            reply = {"exchange": "reply.celery.pidbox", "routing_key": f"ticket {number}"}
            connection.Producer().publish("x", **reply)
            connection.close()
    (line,) = [text for r in caplog.records if "no queue is bound" in (text := r.getMessage())]
    assert "lonely" in line
    assert "nobody" in line
    with client.inspector() as inspector:
        assert inspector.queues() == []


def test_unroutable_can_be_an_error(client):
    """With unroutable="error", an unroutable message raises; the error names exchange and key."""
    connection = client.connect(unroutable="error")
    Exchange("lonely", "direct")(connection.default_channel).declare()
    with pytest.raises(connection.channel_errors, match=r"lonely.*nobody"):
        connection.Producer().publish("x", exchange="lonely", routing_key="nobody")


def test_copies_are_independent(client):
    """An ack or requeue of the copy in one queue does not affect the copy in another."""
    connection = client.connect()
    bound(connection, Exchange("x", "fanout"), one="", two="")
    connection.Producer().publish("x", exchange="x", routing_key="")
    first, second = get(connection, "one"), get(connection, "two")
    assert first.delivery_tag != second.delivery_tag
    first.requeue()
    assert client.status("one").ready == 1
    assert client.status("two").unacked == 1
    get(connection, "one").ack()
    assert client.status("two").unacked == 1
    second.ack()
    assert client.status("one").ledger["acked"] == client.status("two").ledger["acked"] == 1


def test_requeue_after_the_binding_is_gone(client):
    """A requeued message returns to its own queue, regardless of later bindings."""
    connection = client.connect()
    exchange = Exchange("x", "direct")
    bound(connection, exchange, one="k")
    connection.Producer().publish("x", exchange="x", routing_key="k")
    message = get(connection, "one")
    Queue("one", exchange, "k")(connection.default_channel).queue_unbind()
    bound(connection, exchange, two="k")
    message.requeue()
    assert get(connection, "one").payload == "x"
    assert get(connection, "two") is None


def test_publish_to_a_queue_and_an_exchange_of_one_name(client):
    """A queue and an exchange may have the same name."""
    connection = client.connect()
    bound(connection, Exchange("same", "direct"), same="k")
    publish(connection, "same", "by name")
    connection.Producer().publish("by key", exchange="same", routing_key="k")
    assert [get(connection, "same").payload for _ in range(2)] == ["by name", "by key"]
