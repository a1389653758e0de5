"""Producer, Consumer, SimpleQueue, SimpleBuffer, ConsumerMixin, basic_get, purge, drain_events."""

from __future__ import annotations

import threading
import time
from queue import Empty

import pytest
from kombu import Exchange, Producer, Queue
from kombu.mixins import ConsumerMixin, ConsumerProducerMixin

from tests.support.waiting import wait_until

from ..kombu_client import Taker, declare, get, publish


def test_producer_and_consumer(client):
    """A Consumer receives the message of a Producer, with its routing key and exchange."""
    connection = client.connect()
    exchange = Exchange("orders", "direct")
    queue = Queue("orders.new", exchange, "new")
    got = []
    with connection.Consumer(queue, callbacks=[lambda body, message: got.append((body, message))]):
        Producer(connection, exchange, routing_key="new").publish({"id": 7})
        connection.drain_events(timeout=5)
    ((body, message),) = got
    assert body == {"id": 7}
    assert message.delivery_info["exchange"] == "orders"
    assert message.delivery_info["routing_key"] == "new"
    assert not message.delivery_info.get("redelivered")
    message.ack()


def test_producer_declares_what_it_is_given(client):
    """publish(declare=[queue]) declares the queue and stores the message."""
    connection = client.connect()
    queue = Queue("declared", Exchange("declaring", "direct"), "key")
    producer = connection.Producer()
    producer.publish("x", exchange=queue.exchange, routing_key="key", declare=[queue])
    assert queue(connection.default_channel).get().payload == "x"


def test_simple_queue(client):
    """A SimpleQueue puts, counts, gets and acks messages, and raises Empty."""
    with client.connect().SimpleQueue("simple") as queue:
        queue.put({"n": 1})
        queue.put({"n": 2})
        assert queue.qsize() == 2
        first = queue.get(timeout=5)
        assert first.payload == {"n": 1}
        first.ack()
        second = queue.get(timeout=5)
        second.ack()
        with pytest.raises(Empty):
            queue.get(timeout=0.2)
        with pytest.raises(Empty):
            queue.get_nowait()
    assert client.status("simple").ledger["acked"] == 2


def test_simple_queue_clear(client):
    """SimpleQueue.clear returns the number of removed messages."""
    with client.connect().SimpleQueue("simple") as queue:
        for n in range(3):
            queue.put(n)
        assert queue.clear() == 3
        assert len(queue) == 0


def test_simple_buffer(client):
    """A SimpleBuffer needs no ack, and its queue is deleted with its consumer."""
    connection = client.connect()
    with connection.SimpleBuffer("buffer") as buffer:
        buffer.put("x")
        assert buffer.get(timeout=5).payload == "x"
        assert client.status("buffer").unacked == 0
    assert client.status("buffer") is None


class Worker(ConsumerMixin):
    """Stops after the expected number of messages."""

    def __init__(self, connection, queue, expected):
        self.connection, self.queue, self.expected = connection, queue, expected
        self.bodies = []

    def get_consumers(self, Consumer, channel):  # noqa: N803 - Kombu's name
        """Consume from the one queue."""
        return [Consumer([self.queue], callbacks=[self.on_task], prefetch_count=2)]

    def on_task(self, body, message):
        """Record the body, ack, and stop at the last message."""
        self.bodies.append(body)
        message.ack()
        self.should_stop = len(self.bodies) == self.expected


def test_consumer_mixin(client):
    """A ConsumerMixin consumes until should_stop is set."""
    connection = client.connect()
    queue = declare(connection, "mixin")
    publish(connection, "mixin", *range(5))
    worker = Worker(connection, queue, 5)
    worker.run()
    assert worker.bodies == [0, 1, 2, 3, 4]


class Echo(ConsumerProducerMixin, Worker):
    """Answers each message to its reply_to."""

    def on_task(self, body, message):
        """Publish the answer, then handle the message as a Worker does."""
        self.producer.publish(
            body * 2,
            exchange="",
            routing_key=message.properties["reply_to"],
            correlation_id=message.properties["correlation_id"],
            retry=True,
        )
        super().on_task(body, message)


def test_consumer_producer_mixin(client):
    """A ConsumerProducerMixin publishes answers over a second connection."""
    connection = client.connect()
    queue = declare(connection, "requests")
    declare(connection, "answers")
    publish(connection, "requests", 21, reply_to="answers", correlation_id="c1")
    Echo(connection, queue, 1).run()
    answer = get(connection, "answers")
    assert answer.payload == 42
    assert answer.properties["correlation_id"] == "c1"


def test_basic_get(client):
    """basic_get returns the oldest message and leaves it unacked, or None."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "a", "b")
    message = get(connection, "q")
    assert message.payload == "a"
    assert client.status("q").unacked == 1
    message.ack()
    get(connection, "q").ack()
    assert get(connection, "q") is None


def test_basic_get_no_ack(client):
    """A message fetched with no_ack counts as acked at once."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", "a")
    assert get(connection, "q", no_ack=True).payload == "a"
    assert client.status("q").ledger["acked"] == 1
    assert client.status("q").unacked == 0


def test_no_ack_consumer(client):
    """A no_ack consumer's messages count as acked at their delivery; ack() has no effect."""
    connection = client.connect()
    taker = Taker(connection, "q", no_ack=True)
    publish(connection, "q", "a", "b")
    messages = taker.take(2)
    assert [message.payload for message in messages] == ["a", "b"]
    messages[0].ack()
    assert client.status("q").unacked == 0
    assert client.status("q").ledger["acked"] == 2
    connection.release()
    assert client.status("q").ready == 0


def test_purge_returns_the_count(client):
    """A purge removes the ready messages, returns their number, and keeps the unacked ones."""
    connection = client.connect()
    queue = declare(connection, "q")
    publish(connection, "q", *range(250))
    held = get(connection, "q")
    assert queue.purge() == 249
    assert queue.purge() == 0
    status = client.status("q")
    assert (status.ready, status.unacked, status.ledger["purged"]) == (0, 1, 249)
    held.ack()


def test_one_message_per_drain(client):
    """Each call of drain_events delivers exactly one message of those buffered."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=10)
    publish(connection, "q", "a", "b", "c")
    seen = []
    for _ in range(3):
        connection.drain_events(timeout=5)
        seen.append(len(taker.messages))
    assert seen == [1, 2, 3]
    for message in taker.messages:
        message.ack()


@pytest.mark.parametrize("timeout_s", [0.05, 0.3, 0.8])
def test_drain_times_out(client, timeout_s):
    """drain_events raises socket.timeout soon after its timeout, and not before."""
    connection = client.connect(poll_interval=30)
    Taker(connection, "q")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=timeout_s)
    assert timeout_s <= time.monotonic() - began < timeout_s + 5


def test_drain_with_timeout_zero(client):
    """timeout=0 delivers an available message and otherwise raises at once."""
    connection = client.connect(poll_interval=30)
    taker = Taker(connection, "q")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0)
    assert time.monotonic() - began < 5
    publish(connection, "q", "a")

    def drained():
        try:
            connection.drain_events(timeout=0)
        except TimeoutError:
            return False
        return True

    wait_until(drained)
    assert taker.messages[0].payload == "a"
    taker.messages[0].ack()


def test_drain_without_timeout_waits_for_the_message(client):
    """Without a timeout, drain_events waits; a later publish ends the wait at once."""
    connection, other = client.connect(), client.connect()
    taker = Taker(connection, "q")
    declare(other, "q")
    late = threading.Timer(0.7, lambda: publish(other, "q", time.monotonic()))
    late.start()
    connection.drain_events()
    woken = time.monotonic()
    late.join()
    (message,) = taker.messages
    assert woken - message.payload < 0.3
    message.ack()
