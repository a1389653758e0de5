"""Producer.batch(): one flush sends many messages, each like a separate publish."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time

import pytest
from kombu import Exchange, Queue
from kombu.exceptions import BatchPublishError

from reliq import BatchUncertain, BrokerTimeout, MessageRefused, Unroutable
from tests.support.interrupts import PACKAGE, Nester
from tests.support.waiting import wait_until

from ..kombu_client import FAST, Client, Taker, declare, get, payloads


@pytest.fixture
def frozen_client(fresh_redis, scheme):
    """Return a Client of a separate server, which the test may freeze."""
    client = Client(fresh_redis, fresh_redis.url(scheme))
    try:
        yield client
    finally:
        fresh_redis.thaw()
        client.close()
        client.audit()
        client.raw.close()


def published(client, queue="q"):
    """Return the number of messages in the ledger of *queue*."""
    status = client.status(queue)
    return 0 if status is None else status.ledger.get("published", 0)


def test_a_flush_within_a_flush_is_refused(client):
    """A signal handler that flushes the batch that it interrupts gets an error; nothing is lost."""
    connection = client.connect()
    declare(connection, "q")
    refused = []

    def flush_again(batch):
        with pytest.raises(RuntimeError, match="another batch") as error:
            batch.flush()
        refused.append(error)

    with connection.channel() as channel:
        batch = channel.create_publish_batch(10)
        batch.publish(channel.prepare_message("x", content_type="text/plain"), routing_key="q")
        nester = Nester(PACKAGE, 30, lambda: flush_again(batch))
        nester.run(batch.flush)
    assert nester.where
    assert refused
    assert ["x"] == payloads(Taker(connection, "q").take())


def bind(connection, *queues, exchange="e", kind="direct", key="key"):
    """Declare queues and bind each to *exchange*."""
    for name in queues:
        Queue(name, Exchange(exchange, kind), key)(connection.default_channel).declare()


def test_nothing_is_stored_before_the_flush(client):
    """The messages are sent in order at the end of the block."""
    connection = client.connect()
    producer = connection.Producer()
    assert producer.supports_batch_publish
    with producer.batch() as batch:
        for number in range(3):
            producer.publish(number, routing_key="q")
        assert 0 == published(client)
        batch.flush()
        assert 3 == published(client)
        producer.publish(3, routing_key="q")
    assert [0, 1, 2, 3] == Taker(connection, "q").take_bodies(4)


def test_the_default_channel_is_not_needed_to_know():
    """Kombu reads the capability from the transport, before it connects."""
    from kombu import Connection

    with Connection("reliq://127.0.0.1:1/0") as connection:
        assert connection.transport.implements.batch_publish
        assert connection.Producer().supports_batch_publish


def test_an_exception_drops_what_was_not_flushed(client):
    """An exception drops the messages that max_size has not flushed yet."""
    producer = client.connect().Producer()

    def fill():
        with producer.batch(max_size=4):
            for number in range(6):
                producer.publish(number, routing_key="q")
            raise LookupError

    with pytest.raises(LookupError):
        fill()
    assert 4 == published(client)
    producer.publish(6, routing_key="q")
    assert 5 == published(client)


def test_nested_batches(client):
    """An inner block belongs to the outer one, and its failure ends both."""
    producer = client.connect().Producer()
    with producer.batch():
        with producer.batch():
            producer.publish(1, routing_key="q")
        assert 0 == published(client)
    assert 1 == published(client)

    def fail_inside():
        with producer.batch():
            producer.publish(2, routing_key="q")
            with pytest.raises(LookupError), producer.batch():
                raise LookupError
            producer.publish(3, routing_key="q")

    with pytest.raises(RuntimeError, match="aborted"):
        fail_inside()
    assert 1 == published(client)


def test_a_batch_is_bounded_in_bytes(client):
    """A batch flushes at 8 MiB, whatever max_size is."""
    producer = client.connect().Producer()
    with producer.batch(max_size=10_000):
        for number in range(9):
            producer.publish(b"x" * 2**20, routing_key="q")
            assert published(client) == (7 if number >= 7 else 0), number
    assert 9 == published(client)


def test_a_copy_counts_as_a_message(client):
    """A message for two queues counts twice towards max_size."""
    connection = client.connect()
    bind(connection, "q", "r", exchange="fan", kind="fanout")
    producer = connection.Producer()
    with producer.batch(max_size=4):
        producer.publish(1, exchange="fan")
        assert 0 == published(client)
        producer.publish(2, exchange="fan")
        assert 2 == published(client) == published(client, "r")
        producer.publish(3, exchange="fan")
    assert 3 == published(client) == published(client, "r")


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "9"])
def test_a_wrong_size_is_refused(client, size):
    """Kombu's batch and this one require a whole number."""
    connection = client.connect()
    for make in (connection.Producer().batch, connection.default_channel.create_publish_batch):
        with pytest.raises(ValueError, match="max_size"):
            make(max_size=size)


def test_each_message_keeps_what_is_its_own(client):
    """Each message keeps its own priority, TTL, delay, headers and route."""
    connection = client.connect()
    bind(connection, "r", kind="topic", key="a.*")
    producer = connection.Producer()
    with producer.batch():
        producer.publish("late", routing_key="q", priority=9, headers={"h": 1})
        producer.publish("first", routing_key="q", priority=0)
        producer.publish("gone", routing_key="q", expiration=0.001)
        producer.publish("delayed", routing_key="q", headers={"x-delay": 3_600_000})
        producer.publish("routed", exchange="e", routing_key="a.b")
    assert 1 == client.status("q").delayed
    first, late = Taker(connection, "q").take(2)
    assert ["first", "late"] == payloads([first, late])
    assert 1 == late.headers["h"]
    assert "routed" == get(connection, "r").payload


@pytest.mark.parametrize(
    "wrong", [{"priority": 256}, {"headers": {"x-delay": -1}}, {"headers": {"h": object()}}]
)
def test_a_refused_message_spoils_no_other(client, wrong):
    """A message that is refused when it is added does not affect the others."""
    producer = client.connect().Producer()
    with producer.batch():
        producer.publish(1, routing_key="q")
        with pytest.raises(MessageRefused):
            producer.publish(2, routing_key="q", **wrong)
        producer.publish(3, routing_key="q")
    assert 2 == published(client)


def test_celery_tasks_in_a_batch(site):
    """Tasks of apply_async in a batch are sent at the end of the block, and run."""
    with site.app.producer_or_acquire() as producer:
        with producer.batch():
            ids = [site.send("record", producer=producer).id for _ in range(20)]
            assert "celery" not in site.server.client().zrange("reliq:{%}:queues", 0, -1)
        assert 20 == site.counts()["ready"]
    worker = site.worker(pool="solo")
    wait_until(lambda: len(site.journal.finished()) == len(ids), what=worker.tail)
    assert sorted(ids) == sorted(site.journal.finished())
    site.settled()


# -- routing


def test_nothing_is_bound(client, caplog):
    """A message without a queue is dropped and logged once, as without a batch."""
    connection = client.connect()
    bind(connection, "q")
    producer = connection.Producer()
    with caplog.at_level(logging.WARNING), producer.batch():
        for number in range(3):
            producer.publish(number, exchange="e", routing_key="nobody")
            producer.publish(number, exchange="e", routing_key="key")
    assert 1 == sum("no queue is bound" in record.message for record in caplog.records)
    assert 3 == published(client)


def test_nothing_is_bound_and_that_is_an_error(client):
    """With unroutable="error" the error is raised at once, and the other messages are stored."""
    connection = client.connect(unroutable="error")
    bind(connection, "q")
    producer = connection.Producer()
    with producer.batch():
        producer.publish(1, exchange="e", routing_key="key")
        with pytest.raises(Unroutable, match="'nobody'"):
            producer.publish(2, exchange="e", routing_key="nobody")
        producer.publish(3, exchange="e", routing_key="key")
    assert 2 == published(client)


def test_bindings_that_change_before_the_flush(client):
    """The flush uses the current bindings: a new queue gets all messages, an unbound one none."""
    connection, other = client.connect(), client.connect()
    bind(connection, "q", "gone")
    producer = connection.Producer()
    with producer.batch():
        for number in range(3):
            producer.publish(number, exchange="e", routing_key="key")
            producer.publish(number, routing_key="direct")
        bind(other, "new")
        other.default_channel.queue_unbind("gone", "e", "key")
    counts = [published(client, name) for name in ("q", "gone", "new", "direct")]
    assert [3, 0, 3, 3] == counts


def test_the_last_binding_goes_before_the_flush(client):
    """A message that has lost its last queue is reported after all others are stored."""
    connection, other = client.connect(unroutable="error"), client.connect()
    bind(connection, "q")
    batch = connection.default_channel.create_publish_batch(100)
    for number, target in enumerate([("e", "key"), ("", "direct"), ("e", "key"), ("", "direct")]):
        message = connection.default_channel.prepare_message(b"%d" % number, properties={})
        batch.publish(message, exchange=target[0], routing_key=target[1])
    other.default_channel.queue_unbind("q", "e", "key")
    with pytest.raises(Unroutable, match="one of 2 such"):
        batch.flush()
    assert 2 == published(client, "direct")
    batch.flush()
    assert 2 == published(client, "direct")


def test_a_queue_that_the_broker_lost(client):
    """A queue that this connection declared is declared again, and gets the flush."""
    connection = client.connect()
    bind(connection, "q")
    producer = connection.Producer()
    with producer.batch():
        producer.publish(1, exchange="e", routing_key="key")
        client.raw.flushall()
    assert [1] == Taker(connection, "q").take_bodies(1)


def test_a_full_queue(client):
    """The rejects of a full queue are reported and removed; the rest of the batch is stored."""
    from reliq import QueueFull

    connection = client.connect()
    limits = {"x-max-length": 2, "x-overflow": "reject-publish"}
    declare(connection, "q", queue_arguments=limits)
    channel = connection.default_channel
    batch = channel.create_publish_batch(100)
    for number in range(5):
        for queue in ("q", "free"):
            message = channel.prepare_message(b"%d" % number, properties={})
            batch.publish(message, routing_key=queue)
    with pytest.raises(QueueFull, match=r"queue 'q' has reached.*3 messages of a batch"):
        batch.flush()
    batch.flush()
    assert [2, 5] == [client.status(name).ready for name in ("q", "free")]


def test_a_batch_tells_what_it_stored(client):
    """message_published is sent for each copy, but only after the flush has returned."""
    from reliq.signals import message_published

    told = []

    def on_published(broker, *, queue, exchange, routing_key, **_):
        told.append((queue, exchange, routing_key))

    connection = client.connect()
    bind(connection, "q", "r")
    message_published.connect(on_published)
    try:
        producer = connection.Producer()
        with producer.batch():
            producer.publish(1, routing_key="s")
            producer.publish(2, exchange="e", routing_key="key")
            assert [] == told
    finally:
        message_published.disconnect(on_published)
    assert [("q", "e", "key"), ("r", "e", "key"), ("s", "", "s")] == sorted(told)


# -- failures


def test_a_frozen_broker(frozen_client):
    """The flush fails in time with the uncertain messages; another flush stores each once."""
    connection = frozen_client.connect(socket_timeout=1)
    bind(connection, "r")
    producer = connection.Producer()
    producer.publish(5, exchange="e", routing_key="key")
    frozen_client.server.freeze()
    began = time.monotonic()

    def fill():
        with producer.batch():
            for number in range(5):
                producer.publish(number, routing_key="q")
            producer.publish(5, exchange="e", routing_key="key")

    with pytest.raises(BatchUncertain) as caught:
        fill()
    assert time.monotonic() - began < 20
    error = caught.value
    assert isinstance(error, BatchPublishError)
    assert isinstance(error.__cause__, BrokerTimeout)
    assert not isinstance(error, connection.recoverable_connection_errors)
    assert 6 == error.messages
    for word in ("6 messages", "'q'", "socket_timeout", "Some, all or none", "flush()"):
        assert word in str(error)
    frozen_client.server.thaw()
    error.batch.flush()
    assert [5, 2] == [published(frozen_client, name) for name in ("q", "r")]
    error.batch.flush()
    assert [5, 2] == [published(frozen_client, name) for name in ("q", "r")]


def test_a_broker_that_freezes_is_waited_for_once(frozen_client):
    """Messages of unknown routes are accepted while the broker is frozen; the flush fails."""
    connection = frozen_client.connect(socket_timeout=0.5, socket_connect_timeout=0.5)
    bind(connection, "r")
    channel = connection.default_channel
    batch = channel.create_publish_batch(1000)
    frozen_client.server.freeze()
    began = time.monotonic()
    for number in range(100):
        message = channel.prepare_message(b"%d" % number, properties={})
        batch.publish(message, exchange="e", routing_key="key")
    assert time.monotonic() - began < 20
    with pytest.raises(BatchUncertain, match="100 messages for exchange 'e'"):
        batch.flush()
    frozen_client.server.thaw()
    batch.flush()
    assert 100 == published(frozen_client, "r")


def test_a_killed_broker(redis_factory, scheme):
    """Without a broker the flush fails at once; another flush after the restart is enough."""
    server = redis_factory(appendonly=True)
    client = Client(server, server.url(scheme))
    producer = client.connect().Producer()
    producer.publish(0, routing_key="q")

    def fill():
        with producer.batch():
            producer.publish(1, routing_key="q")
            server.kill()

    with pytest.raises(BatchUncertain, match="not reachable") as caught:
        fill()
    server.start()
    caught.value.batch.flush()
    assert 2 == published(client)
    client.close()
    client.audit()


def test_uncertain_messages_go_first(frozen_client):
    """A batch flushes its uncertain messages before it accepts more."""
    connection = frozen_client.connect(socket_timeout=0.5, socket_connect_timeout=0.5)
    producer = connection.Producer()
    producer.publish(0, routing_key="q")
    with producer.batch() as batch:
        producer.publish(1, routing_key="q")
        frozen_client.server.freeze()
        with pytest.raises(BatchUncertain):
            batch.flush()
        with pytest.raises(BatchUncertain, match="of this call was not added"):
            producer.publish(2, routing_key="q")
        frozen_client.server.thaw()
        producer.publish(3, routing_key="q")
        assert 2 == published(frozen_client)
    assert [0, 1, 3] == Taker(connection, "q").take_bodies(3)


def test_the_message_that_fills_the_batch(frozen_client):
    """The error counts the message that caused the flush among the uncertain ones."""
    producer = frozen_client.connect(socket_timeout=0.5, socket_connect_timeout=0.5).Producer()
    producer.publish(0, routing_key="q")

    def fill():
        with producer.batch(max_size=2):
            producer.publish(1, routing_key="q")
            frozen_client.server.freeze()
            producer.publish(2, routing_key="q")

    with pytest.raises(BatchUncertain, match="of this call was added") as caught:
        fill()
    assert (2, ("q",)) == (caught.value.messages, caught.value.queues)
    frozen_client.server.thaw()
    caught.value.batch.flush()
    assert 3 == published(frozen_client)


def test_a_full_broker(frozen_client):
    """A broker without memory makes the batch uncertain, because a part may be stored.

    The batch keeps its messages.
    """
    connection = frozen_client.connect()
    producer = connection.Producer()
    producer.publish(0, routing_key="q")
    raw = frozen_client.raw
    raw.config_set("maxmemory-policy", "noeviction")
    raw.config_set("maxmemory", "1kb")

    def fill():
        with producer.batch():
            for number in range(3):
                producer.publish(number, routing_key="q")

    with pytest.raises(BatchUncertain, match="maxmemory") as caught:
        fill()
    raw.config_set("maxmemory", "0")
    caught.value.batch.flush()
    assert 4 == published(frozen_client)


@pytest.mark.parametrize("end", ["close", "collect", "release"])
def test_the_channel_goes_before_the_flush(client, end):
    """A batch can be flushed after its channel was closed or its connection was lost."""
    connection = client.connect(visibility_timeout=2)
    bind(connection, "q")
    channel = connection.default_channel
    batch = channel.create_publish_batch(100)
    for number in range(3):
        message = channel.prepare_message(b"%d" % number, properties={})
        batch.publish(message, exchange="e", routing_key="key")
    {"close": channel.close, "collect": connection.collect, "release": connection.release}[end]()
    message = channel.prepare_message(b"3", properties={})
    batch.publish(message, exchange="e", routing_key="key")
    batch.flush()
    assert 4 == published(client)


def test_a_closed_batch_takes_nothing(client):
    """close() drops unsent messages, and a later publish raises an error."""
    channel = client.connect().default_channel
    batch = channel.create_publish_batch(100)
    batch.publish(channel.prepare_message(b"1", properties={}), routing_key="q")
    batch.close()
    with pytest.raises(RuntimeError, match="closed"):
        batch.publish(channel.prepare_message(b"2", properties={}), routing_key="q")
    batch.flush()
    assert 0 == published(client)


# -- processes and threads


def test_threads_share_a_batch(client):
    """Threads that add to and flush one batch lose and duplicate no message."""
    channel = client.connect().default_channel
    declare(client.connect(), "q")
    batch = channel.create_publish_batch(7)
    failures = []

    def work(offset):
        try:
            for number in range(offset, offset + 100):
                message = channel.prepare_message(b"%d" % number, properties={})
                batch.publish(message, routing_key="q")
                if number % 10 == 9:
                    batch.flush()
        except Exception as exc:  # noqa: BLE001 - reported below
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(0, 400, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batch.flush()
    assert [] == failures
    messages = Taker(client.connect(), "q").take(400)
    assert list(range(400)) == sorted(int(message.body) for message in messages)


FORK = """
import os, sys
import reliq
from kombu import Connection

with Connection(sys.argv[1], transport_options={options!r}) as connection:
    producer = connection.Producer()
    producer.publish(["before", 0], routing_key="q")
    with producer.batch() as batch:
        for n in range(5):
            producer.publish(["parent", n], routing_key="q")
        child = os.fork()
        if child == 0:
            batch.flush()  # of the parent's messages, nothing
            for n in range(5):
                producer.publish(["child", n], routing_key="q")
            batch.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""


def test_a_fork_inside_a_batch(client):
    """The parent sends the messages from before the fork; the child has an empty batch."""
    script = FORK.replace("{options!r}", repr(FAST))
    command = [sys.executable, "-W", "error", "-c", script, client.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ("", 0) == (done.stderr, done.returncode)
    expected = [["before", 0], *([who, n] for who in ("child", "parent") for n in range(5))]
    assert expected == sorted(payloads(Taker(client.connect(), "q").take(11)))
    assert 11 == published(client)


def test_a_delay_counts_from_its_publish(client):
    """The time that a message waits in a batch counts towards its delay."""
    connection = client.connect()
    producer = connection.Producer()

    def now_ms():
        seconds, microseconds = client.raw.time()
        return seconds * 1000 + microseconds // 1000

    with producer.batch():
        before = now_ms()
        producer.publish(1, routing_key="q", headers={"x-delay": 10_000})
        after = now_ms()
        wait_until(lambda: now_ms() > after + 500)
    ((_, due),) = client.raw.zrange("reliq:{q}:delayed", 0, -1, withscores=True)
    assert before + 9_995 <= due <= after + 10_005
