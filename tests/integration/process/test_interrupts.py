"""An exception at any point of reliq's code, as from a signal handler, loses and holds no message.

Each test interrupts one step at every point at which Python checks for signals, one run for each
point. After each run, the same process must be able to do its work. Python checks at the start of a
function, after a call, and at the backward jump of a loop, so every line that calls is interrupted.

Four interrupts need time, or more:

- An interrupt while the reply to a reserve is read: this process does not know the messages, so it
  cannot hold them. They return when their leases end, or with the next connection.
- An interrupt after Kombu's consumer was called with the message: the message is an unacked one of
  the application. It returns with ``recover``, or when its channel closes.
- An interrupt after a publish was settled, on its way back to the application: the message is
  stored. If the application publishes the same properties again, that is a new publish.
- An interrupt while a reply with ``no_ack`` messages is read: the broker has removed them already.
"""

from __future__ import annotations

import gc
import threading
from contextlib import suppress

import pytest
from kombu import Connection, Consumer, Queue

from reliq.errors import BrokerUnavailable
from reliq.routing.publish_ids import PUBLISHER
from tests.support.interrupts import PACKAGE, Interrupter, Limiter

OPTIONS = {"visibility_timeout": 60, "restore_interval": 60}
pytestmark = [
    pytest.mark.slow,  # some hundred runs each
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    # Python loses an interrupt in a destructor.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Program:
    """A process that consumes and publishes over one connection each."""

    def __init__(self, server):
        self.url = server.url("reliq")
        self.redis = server.client()
        self.got = []
        self.numbers = 0
        self.connection = None
        with Connection(self.url, transport_options=OPTIONS) as connection:
            Queue("q", channel=connection.channel()).declare()
        self.publisher = Connection(self.url, transport_options=OPTIONS)
        self.producer = self.publisher.Producer()

    def connect(self):
        """Connect anew; return the connection."""
        self.close()
        self.connection = Connection(self.url, transport_options=OPTIONS)
        self.connection.connect()
        return self.connection

    def close(self):
        """Close the consuming connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def consume(self):
        """Consume over a new connection."""
        self.connect()
        self.consume_here()

    def consume_here(self):
        """Consume over a new channel."""
        channel = self.connection.channel()
        self.consumer = Consumer(channel, [Queue("q")], callbacks=[self._take], prefetch_count=2)
        self.consumer.consume()

    def _take(self, body, message):
        self.got.append(body)
        message.ack()

    def publish(self, count=1):
        """Publish numbered messages; return their numbers."""
        new = list(range(self.numbers, self.numbers + count))
        self.numbers += count
        for number in new:
            self.producer.publish(number, routing_key="q", retry=False)
        return new

    @property
    def transport(self):
        """The transport of the consuming connection."""
        return self.connection.transport

    def strangers(self):
        """Return the held leases whose message is in no buffer and not at the application."""
        transport = self.transport
        transport.link.session.send_owed(transport.link.store)
        held = set(transport.link.session.leases.held)
        for item in transport.schedule.subscriptions:
            held -= {delivery.tag for delivery in item.buffer}
        for channel in transport.channels:
            held -= set(channel.qos_.delivered)
        return held

    def end_unknown_leases(self):
        """End the leases that this process does not renew, as time does."""
        key = "reliq:{q}:unacked_index"
        for tag in self.redis.zrange(key, 0, -1):
            if tag.decode() not in self.transport.link.session.leases.held:
                self.redis.zadd(key, {tag: 0})
        store = self.transport.link.store
        store.post_restore("q", 60_000, lambda _: None)
        store.wait_for_replies()

    def drain(self):
        """Deliver one message."""
        self.connection.drain_events(timeout=5)

    def be_ready(self):
        """Publish two messages; consume again before if the connection was lost."""
        try:
            self.connection.drain_events(timeout=0.001)
        except TimeoutError:
            pass
        except BrokerUnavailable:
            self.consume()
        self.publish(2)

    @property
    def left(self):
        """Whether messages are in the queue, or leased."""
        parts = ("ready", "unacked_index")
        return sum(self.redis.zcard(f"reliq:{{q}}:{part}") for part in parts)

    def finish(self, expected):
        """Take the *expected* messages; consume again if the connection was lost.

        No message is left, nor a lease that this process would renew for ever.
        """
        if self.strangers():
            gc.collect()
        assert not self.strangers()
        for _ in range(20):
            try:
                if set(expected) <= set(self.got) and not self.left:
                    return
                self.connection.drain_events(timeout=0.05)
            except TimeoutError:  # noqa: PERF203 - one of few
                self.transport.link.session.outbox.resend(0.0)  # as the background loop does
                self.strangers()
                self.end_unknown_leases()
                self.consumer.recover(requeue=True)
            except BrokerUnavailable:
                self.consume()
        raise AssertionError(f"{sorted(set(expected) - set(self.got))} did not arrive")

    def no_lock_is_held(self):
        """Fail unless another thread can publish."""
        thread = threading.Thread(target=self._publish_one, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    def _publish_one(self):
        with Connection(self.url) as connection:
            connection.Producer().publish("other", routing_key="other", declare=[Queue("other")])


@pytest.fixture
def program(fresh_redis):
    """Return a program over a server of its own."""
    program = Program(fresh_redis)
    yield program
    program.close()
    program.publisher.close()


def interrupts(do, kind=Interrupter, least=20):
    """Yield the place of each interrupt of *do*, at least *least*."""
    point = 0
    while True:
        point += 1
        interrupter = kind(PACKAGE, point)
        interrupter.run(do)
        interrupter.kept = None  # its frames keep messages, as any reference does
        if not interrupter.where:
            assert point > least
            return
        yield interrupter.where


@pytest.mark.parametrize("kind", [Interrupter, Limiter])
def test_a_delivery(program, kind):
    """Each message of an interrupted reserve, delivery or ack arrives, and is held no longer."""
    program.consume()
    program.be_ready()
    for _ in interrupts(program.drain, kind, 300):
        program.finish(range(program.numbers))
        program.no_lock_is_held()
        program.be_ready()


def test_a_first_consume(program):
    """A connection whose first consume was interrupted can consume."""
    program.connect()
    for _ in interrupts(program.consume_here, least=300):
        expected = program.publish()
        with suppress(BrokerUnavailable):  # the connection was interrupted
            program.consume_here()
        program.finish(expected)
        program.no_lock_is_held()
        program.connect()


def test_a_get(program):
    """A message that an interrupted ``get`` has taken arrives later."""

    def get():
        message = queue.get()
        if message is not None:
            program.got.append(message.payload)
            message.ack()

    queue = Queue("q", channel=program.connect().channel())
    expected = program.publish()
    for _ in interrupts(get, least=100):
        assert not program.strangers()
        program.consume()  # closes the channel of a message that was not acked
        program.finish(expected)
        program.no_lock_is_held()
        queue = Queue("q", channel=program.connect().channel())
        expected = program.publish()


def test_a_publish(program):
    """An interrupted publish is stored once by its retry, and settles its number."""
    program.consume()
    message = {}
    numbers = map(str, range(10_000))
    channel = program.publisher.channel()

    def publish():
        channel.basic_publish(message, routing_key="q")

    def prepare():
        message.update(channel.prepare_message(next(numbers), content_type="text/plain"))
        message["properties"]["delivery_mode"] = 2

    prepare()
    for where in interrupts(publish, least=100):
        tag = message["properties"].get("delivery_tag")
        over = tag is not None and tag.settled
        publish()  # the same properties
        program.finish([message["body"]])
        assert program.got.count(message["body"]) <= 1 + over, where
        program.no_lock_is_held()
        message.clear()
        prepare()
        gc.collect(0)
    prepare()
    publish()
    assert "q" not in PUBLISHER._open  # other tests have other queues


def test_a_renewal(program):
    """Leases whose renewal was interrupted are renewed before their end."""
    program.consume()
    held = []
    program.consumer.callbacks = [lambda _, message: held.append(message)]
    program.publish(2)
    while len(held) < 2:
        program.connection.drain_events(timeout=5)
    link = program.transport.link
    renewal = link.session.duties.renewal

    def renew():
        renewal.renew(link.store, all_of_them=True)
        link.store.wait_for_replies()

    key = "reliq:{q}:unacked_index"
    for where in interrupts(renew, least=50):
        leases = link.session.leases
        before = program.redis.zrange(key, 0, -1, withscores=True)
        assert 2 == len(leases.held), where
        with suppress(BrokerUnavailable):
            link.store.connect()
            renew()
        after = program.redis.zrange(key, 0, -1, withscores=True)
        assert all(one[1] <= other[1] for one, other in zip(before, after, strict=True)), where
        program.no_lock_is_held()
    for message in held:
        message.ack()


def test_a_connect(program):
    """After an interrupted connect, the same connection connects and publishes."""
    connection = Connection(program.url, transport_options=OPTIONS)
    for _ in interrupts(connection.connect, least=100):
        connection.Producer().publish("x", routing_key="other")
        program.no_lock_is_held()
        connection.close()
        connection = Connection(program.url, transport_options=OPTIONS)
    connection.close()
