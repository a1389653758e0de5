"""Faults of Redis: lost scripts and connections, a frozen server, foreign data in keys."""

from __future__ import annotations

import time

import pytest

from tests.support.waiting import stays_true, wait_until

from ..kombu_client import Client, Taker, declare, get, publish

RETRY = {
    "retry": True,
    "retry_policy": {
        "max_retries": 5,
        "interval_start": 0,
        "interval_step": 0.05,
        "interval_max": 0.2,
    },
}


def test_script_flush_between_all_operations(client):
    """With SCRIPT FLUSH before every step, each message is delivered once."""
    connection, other = client.connect(), client.connect()
    flush = client.raw.script_flush
    flush()
    taker = Taker(connection, "q", prefetch_count=2)
    delivered = []
    for n in range(15):
        flush()
        publish(other, "q", n)
        flush()
        (message,) = taker.take()
        flush()
        if n % 3 == 0:
            message.requeue()
            flush()
            (message,) = taker.take()
        delivered.append(message.payload)
        flush()
        message.ack()
    flush()
    taker.consumer.cancel()
    flush()
    assert get(connection, "q") is None
    assert delivered == list(range(15))
    wait_until(lambda: client.settled("q"))


def test_script_flush_while_leases_are_renewed(client):
    """SCRIPT FLUSH does not end a lease."""
    connection, idle = client.connect(visibility_timeout=0.5), client.connect()
    declare(connection, "q")
    publish(connection, "q", "x")
    message = get(connection, "q")
    other = Taker(idle, "q")

    def flushed():
        client.raw.script_flush()
        return client.status("q").unacked == 1

    stays_true(flushed, for_s=1.5)
    assert other.gets_nothing()
    message.ack()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["script_flush", "cut"])
def test_an_ack_of_a_consumer_that_is_busy_then(client, fault):
    """An ack lost to an empty script cache or a dead socket is resent while the consumer is busy.

    The consumer acks and then works for longer than visibility_timeout without a check of its
    connection, like every consumer that acks before its work.
    """
    connection = client.connect(visibility_timeout=0.6)
    other = client.connect(visibility_timeout=0.6, client_name="other")
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "x")
    (message,) = taker.take()
    idle = Taker(other, "q", prefetch_count=1)
    with pytest.raises(TimeoutError):
        other.drain_events(timeout=0.1)
    if fault == "script_flush":
        client.raw.script_flush()
    else:
        ours = f"reliq:{connection.transport.link.store.consumer}"
        entries = [entry for entry in client.raw.client_list() if entry["name"] == ours]
        client.raw.client_kill_filter(_id=entries[0]["id"])
    message.ack()
    assert idle.gets_nothing(for_s=2)
    wait_until(lambda: settled_or_drained(client, connection))


def cut(client: Client) -> None:
    """End all connections to the server except this one."""
    client.raw.client_kill_filter(_type="normal", skipme=True)


def take_anyhow(connection, taker, count=1):
    """Take *count* messages; revive the consumer after each lost connection."""
    wanted = len(taker.messages) + count
    deadline = time.monotonic() + 15
    while len(taker.messages) < wanted:
        assert time.monotonic() < deadline
        try:
            connection.drain_events(timeout=1)
        except TimeoutError:
            pass
        except connection.connection_errors:
            connection.collect()
            connection.ensure_connection(max_retries=5, interval_start=0, interval_step=0.1)
            taker.channel = connection.channel()
            taker.consumer.revive(taker.channel)
            taker.consumer.consume()
    return taker.messages[-count:]


def test_cut_between_all_operations(client):
    """With CLIENT KILL before every step and Kombu's retries, each message is delivered once."""
    connection, publisher = client.connect(visibility_timeout=60), client.connect()
    taker = Taker(connection, "q", prefetch_count=2)
    producer = publisher.Producer()
    for n in range(10):
        cut(client)
        producer.publish(n, exchange="", routing_key="q", **RETRY)
        cut(client)
        (message,) = take_anyhow(connection, taker)
        cut(client)
        message.ack()
    assert [message.payload for message in taker.messages] == list(range(10))
    wait_until(lambda: settled_or_drained(client, connection))
    assert client.status("q").ledger["published"] == 10


def settled_or_drained(client, connection):
    """Drain once, reconnect after a loss, and return whether all messages are acked."""
    try:
        connection.drain_events(timeout=0.1)
    except TimeoutError:
        pass
    except connection.connection_errors:
        connection.collect()
        connection.connect()
    return client.settled("q")


def test_ensure_over_a_cut_connection(client):
    """Connection.ensure retries a publish over a new connection and stores it once."""
    connection = client.connect()
    declare(connection, "q")
    producer = connection.Producer()
    publish_surely = connection.ensure(
        producer, producer.publish, max_retries=3, interval_start=0, interval_step=0.1
    )
    for n in range(10):
        cut(client)
        publish_surely(n, exchange="", routing_key="q")
    assert client.status("q").ready == 10
    assert client.status("q").ledger["published"] == 10


def test_a_cut_is_a_connection_error(client):
    """A consumer whose connections were cut learns of it from drain_events within seconds."""
    connection = client.connect()
    Taker(connection, "q")
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)
    cut(client)
    began = time.monotonic()
    with pytest.raises(connection.connection_errors) as caught:
        connection.drain_events(timeout=30)
    assert not isinstance(caught.value, TimeoutError)
    assert time.monotonic() - began < 10
    assert isinstance(caught.value, connection.recoverable_connection_errors)


@pytest.fixture
def frozen_client(fresh_redis, scheme):
    """Return a Client of its own server, which the test may freeze."""
    client = Client(fresh_redis, fresh_redis.url(scheme))
    try:
        yield client
    finally:
        fresh_redis.thaw()
        client.close()
        client.raw.close()
    client.audit()


def test_publish_to_a_frozen_broker(frozen_client):
    """A publish to a frozen Redis fails after socket_timeout; the error names server and limit."""
    from reliq import BrokerTimeout

    connection = frozen_client.connect(socket_timeout=1)
    declare(connection, "q")
    frozen_client.server.freeze()
    began = time.monotonic()
    with pytest.raises(BrokerTimeout, match="socket_timeout") as caught:
        publish(connection, "q", "x")
    assert 0.9 <= time.monotonic() - began < 6  # the default is 10 s
    assert str(frozen_client.server.port) in str(caught.value)
    assert "1 s" in str(caught.value)
    frozen_client.server.thaw()
    publish(connection, "q", "y")
    assert "y" in [get(connection, "q").payload for _ in range(frozen_client.status("q").ready)]


def test_get_from_a_frozen_broker(frozen_client):
    """A message that a frozen Redis reserves after the timeout is soon delivered to another get."""
    connection = frozen_client.connect(socket_timeout=1, visibility_timeout=60)
    publish(connection, "q", "before", "x")
    get(connection, "q").ack()  # Redis has cached the script now
    frozen_client.server.freeze()
    with pytest.raises(connection.connection_errors):
        get(connection, "q")
    frozen_client.server.thaw()
    connection.collect()
    message = wait_until(lambda: get(connection, "q"))
    assert ("x", False) == (message.payload, bool(message.headers.get("x-delivery-count")))
    message.ack()
    wait_until(lambda: settled_or_drained(frozen_client, connection))


def test_connect_to_a_frozen_broker(frozen_client):
    """Connecting to a frozen Redis fails within socket_connect_timeout."""
    frozen_client.server.freeze()
    connection = frozen_client.connect(socket_connect_timeout=0.5)
    began = time.monotonic()
    with pytest.raises(connection.connection_errors, match=str(frozen_client.server.port)):
        connection.transport.establish_connection()
    assert time.monotonic() - began < 4  # the default is 5 s


def test_ack_to_a_frozen_broker(frozen_client):
    """The missing reply to an ack raises in drain_events within socket_timeout."""
    connection = frozen_client.connect(socket_timeout=1, visibility_timeout=30)
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "x", "y")
    (message,) = taker.take()
    frozen_client.server.freeze()
    began = time.monotonic()
    message.ack()
    with pytest.raises(connection.connection_errors) as caught:
        connection.drain_events(timeout=30)
    assert not isinstance(caught.value, TimeoutError)
    assert time.monotonic() - began < 6  # the default is 10 s
    frozen_client.server.thaw()
    # The ack is not lost with the connection: it is sent over the next one.
    take_anyhow(connection, taker)[0].ack()
    assert [message.payload for message in taker.messages] == ["x", "y"]
    wait_until(lambda: settled_or_drained(frozen_client, connection))


@pytest.mark.parametrize("how", ["garbage", "truncated", "empty", "another format"])
@pytest.mark.parametrize("fetch", ["consumer", "basic_get"])
def test_a_message_that_is_not_ours(client, how, fetch):
    """An invalid envelope becomes a dead letter with a reason; the next message is delivered."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "broken", "whole")
    messages = "reliq:{q}:messages"
    tag = client.raw.zrange("reliq:{q}:ready", 0, 0)[0]
    stored = client.raw.hget(messages, tag)
    bytes_of = {
        "garbage": b"\xc1\xff\x00 not msgpack",
        "truncated": stored[: len(stored) // 2],
        "empty": b"",
        "another format": b'{"body": "e30=", "properties": {}}',
    }
    client.raw.hset(messages, tag, bytes_of[how])
    if fetch == "consumer":
        (message,) = Taker(connection, "q").take()
    else:
        message = wait_until(lambda: get(connection, "q"))
    assert message.payload == "whole"
    wait_until(lambda: client.status("q").dead == 1)
    (dead_letter,) = client.dead_letters("q")
    assert dead_letter.tag == tag.decode()
    assert dead_letter.reason == "undecodable"
    assert dead_letter.error
    message.ack()


def test_a_message_whose_envelope_is_gone(client):
    """A tag without an envelope does not stop the consumer: the next message is delivered."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "gone", "whole")
    tag = client.raw.zrange("reliq:{q}:ready", 0, 0)[0]
    client.raw.hdel("reliq:{q}:messages", tag)
    (message,) = Taker(connection, "q").take()
    assert message.payload == "whole"
    message.ack()
    client.raw.flushall()  # the ledger still counts the deleted envelope


@pytest.mark.parametrize("word", ["maxmemory", "wrongtype"])
def test_refusals_are_not_retried(frozen_client, word):
    """Out of memory and a key of the wrong type raise at once, without a reconnection."""
    from reliq import BrokerRefused

    connection = frozen_client.connect()
    declare(connection, "q")
    raw = frozen_client.raw
    if word == "maxmemory":
        raw.config_set("maxmemory-policy", "noeviction")
        raw.config_set("maxmemory", "1kb")
    else:
        raw.set("reliq:{q}:messages", "not a hash")
    with pytest.raises(BrokerRefused, match=f"(?i){word}"):
        publish(connection, "q", "x", **RETRY)
    raw.config_set("maxmemory", "0")
    raw.delete("reliq:{q}:messages")
    raw.flushall()
