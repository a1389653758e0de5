"""Transient messages of a fanout exchange, as Celery's events: one log for all consumers."""

from __future__ import annotations

from contextlib import suppress

import pytest
from kombu import Consumer, Exchange, Producer, Queue

from reliq.lua import keys
from tests.support.waiting import wait_until

from ..kombu_client import idle_for_long

EVENTS = Exchange("celeryev", "fanout")
PUBLISHED = 40


def event_queue(name, **changes):
    """Return a queue as Celery's receivers of events declare it."""
    own = {
        "exchange": EVENTS,
        "auto_delete": True,
        "durable": False,
        "message_ttl": 10,
        "expires": 60,
    }
    return Queue(name, routing_key="worker.#", **(own | changes))


class Reader:
    """One consumer of events with a connection of its own."""

    def __init__(self, client, queue, no_ack=True, **options):
        self.connection = client.connect(**options)
        self.got = []
        self.consumer = Consumer(
            self.connection.channel(), [queue], on_message=self.take, no_ack=no_ack
        )
        self.consumer.consume()

    def take(self, message):
        """Record a message, and ack it where that is needed."""
        self.got.append(message.payload)
        if not self.consumer.no_ack:
            message.ack()

    def drain(self):
        """Deliver events until none arrives."""
        with suppress(TimeoutError):
            while True:
                self.connection.drain_events(timeout=0.1)

    def wait(self, *expected):
        """Wait until exactly these have arrived."""
        wait_until(
            lambda: self.drain() or len(self.got) >= len(expected), what=f"{len(expected)} events"
        )
        assert list(expected) == self.got


@pytest.fixture
def publish(client):
    """Return a function that publishes an event, and waits until it is stored."""
    producer = Producer(client.connect().channel(), EVENTS)

    def send(body, **properties):
        properties = {"delivery_mode": 1, **properties}
        producer.publish(body, routing_key="worker.heartbeat", **properties)

    return send


def published(client, queue):
    """Return the number of messages that were stored in *queue*."""
    return client.status(queue).ledger.get("published", 0)


def commands(client):
    """Return the number of commands that the server has processed, with those inside scripts."""
    return sum(each["calls"] for each in client.raw.info("commandstats").values())


def test_commands_of_an_event_do_not_grow_with_its_consumers(client, publish):
    """The server processes as many commands for an event with two idle consumers as with eight."""

    def of_events():
        publish("first")  # reads the bindings
        before = commands(client)
        for i in range(PUBLISHED):
            publish(i)
        return (commands(client) - before) / PUBLISHED

    def more_readers(first, last):
        made = [Reader(client, event_queue(f"celeryev.{i}")) for i in range(first, last)]
        for reader in made:  # the server counts the commands of its duties, too
            reader.connection.transport.link.session.background.stop()
        return made

    readers = more_readers(0, 2)
    few = of_events()
    readers += more_readers(2, 8)
    assert few == of_events()
    assert few < 12
    events = ["first", *range(PUBLISHED)]
    for reader in readers[:2]:
        reader.wait(*events, *events)
    readers[7].wait(*events)


def test_commands_of_a_consumer_do_not_grow_with_the_events(client, publish):
    """A consumer reads many events at once."""
    reader = Reader(client, event_queue("celeryev.1"))
    publish("first")
    reader.wait("first")
    for i in range(90):
        publish(i)
    client.raw.config_resetstat()
    reader.wait("first", *range(90))
    assert client.raw.info("commandstats")["cmdstat_zrangebyscore"]["calls"] < 10
    assert 0 == published(client, "celeryev.1")


@pytest.mark.parametrize(
    ("changes", "no_ack", "properties"),
    [
        ({}, True, {"delivery_mode": 2}),
        ({}, True, {"expiration": 5}),
        ({}, True, {"headers": {"long": "x" * 20_000}}),
        ({}, False, {}),
        ({"message_ttl": None}, True, {}),
        ({"message_ttl": 60}, True, {}),
        ({"auto_delete": False}, True, {}),
        ({"max_length": 100}, True, {}),
        ({"exchange": Exchange("topics", "topic")}, True, {}),
    ],
)
def test_other_messages_and_queues_get_copies(client, publish, changes, no_ack, properties):
    """A message that may not be dropped, or a queue that may outlive it: the queue stores it."""
    queue = event_queue("celeryev.1", **changes)
    reader = Reader(client, queue, no_ack)
    publish("a", exchange=queue.exchange, **properties)
    assert not client.raw.exists(keys.log("", queue.exchange.name))
    assert 1 == published(client, "celeryev.1")
    reader.wait("a")


def test_readers_and_queues_side_by_side(client, publish):
    """A queue without the mark, as older versions declare it, gets a copy beside the log."""
    reader = Reader(client, event_queue("celeryev.1"))
    older = Reader(client, event_queue("celeryev.2"), no_ack=False)
    publish("a")
    publish("b", delivery_mode=2)
    older.wait("a", "b")
    wait_until(lambda: reader.drain() or len(reader.got) > 1)
    assert ["a", "b"] == sorted(reader.got)
    assert 1 == published(client, "celeryev.1")
    assert 2 == published(client, "celeryev.2")


def test_undelivered_events_are_dropped(client, publish):
    """A consumer that is cancelled, or stops, returns nothing to its queue; ledgers balance."""
    reader = Reader(client, event_queue("celeryev.1"))
    for i in range(5):
        publish(i)
    reader.connection.drain_events(timeout=5)
    reader.consumer.cancel()
    assert client.status("celeryev.1") is None
    assert [0] == reader.got
    reader = Reader(client, event_queue("celeryev.1"))
    publish("new")
    reader.wait("new")


def test_a_consumer_goes_on_after_a_lost_connection(client, publish):
    """A consumer that consumes again after a lost connection, or lost data, reads the log again."""
    for lose in (lambda: client.raw.client_kill_filter(_type="normal"), client.raw.flushall):
        reader = Reader(client, event_queue("celeryev.1"))
        publish("a")
        reader.wait("a")
        lose()
        reader.connection.close()
        idle_for_long()
    reader = Reader(client, event_queue("celeryev.1"))
    publish("a")
    reader.wait("a")
    assert 0 == published(client, "celeryev.1")


def test_the_mark_is_no_binding_of_the_application(client, publish):
    """The list of bindings has the application's own only."""
    reader = Reader(client, event_queue("celeryev.1"))
    publish("a")
    reader.wait("a")
    bindings = set(reader.connection.channel().list_bindings())
    assert {("celeryev.1", "celeryev", "worker.#")} == bindings


def test_a_read_that_is_overtaken(client, publish):
    """A read whose reply comes after a later read, as after an interrupt, delivers nothing."""
    reader = Reader(client, event_queue("celeryev.1"))
    transport = reader.connection.transport
    ((_, feed),) = transport.schedule.fed
    publish("a")
    publish("b")
    overtaken = []
    feed.read(transport.link.store, overtaken.extend)
    feed.due_at = 0.0
    reader.wait("a", "b")
    assert [] == overtaken


def test_a_monitor_returns_to_the_first_broker(client, redis_factory):
    """A connection that reads only events leaves the second broker when the first one answers."""
    first = redis_factory()
    first.kill()
    urls = f"{first.url('reliq')};{client.url}"
    reader = Reader(client, event_queue("celeryev.1"), url=urls, probe_interval=0.2)
    with suppress(TimeoutError):
        reader.connection.drain_events(timeout=0.1)
    first.start()

    def leaves():
        try:
            reader.drain()
        except reader.connection.connection_errors as exc:
            return "answers again: leaving" in str(exc)
        return False

    wait_until(leaves, timeout_s=20, what="the monitor to leave the second broker")
