"""A divided queue is one queue for an application: to publish, consume, query and delete."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress

import pytest
from kombu import Connection, Consumer, Exchange, Queue

from reliq import (
    BatchUncertain,
    BrokerUnavailable,
    ConfigurationError,
    MessageRefused,
    PreconditionFailed,
    QueueFull,
)
from reliq.admin import queue_settings as operators
from reliq.consumer import runner
from reliq.message.queue_names import partition_names, partition_of_key
from reliq.routing import partitions
from reliq.routing.publish_ids import PUBLISHER
from reliq.signals import message_published
from reliq.transports.consume import receiver
from reliq.values.values import Layout
from tests.integration.kombu_client import FAST
from tests.support.waiting import wait_until

NAMES = partition_names("q", 8)


def divided(count=4, **arguments):
    """Return the queue q, divided into *count* partitions."""
    return Queue("q", queue_arguments={"x-partitions": count, **arguments})


def store_of(connection):
    """Return the store of the connection."""
    return connection.transport.link.store


def counts(connection, names=NAMES):
    """Return the number of ready messages of each existing partition."""
    statuses = [store_of(connection).reads.status(name) for name in names]
    return [status.ready for status in statuses if status is not None]


def take(connection, queue, count, **options):
    """Consume *count* messages and acknowledge them; return their payloads."""
    got = []

    def on_message(_, message):
        got.append(message.payload)
        message.ack()

    with Consumer(connection, [queue], callbacks=[on_message], **options):
        while len(got) < count:
            connection.drain_events(timeout=10)
    return got


@pytest.fixture
def connection(client):
    """Return a connection with a channel."""
    connection = client.connect()
    connection.default_channel  # noqa: B018 - it connects
    return connection


@pytest.fixture
def operator(client):
    """Return the store of another connection."""
    other = client.connect()
    other.default_channel  # noqa: B018 - it connects
    return store_of(other)


def test_messages_are_spread_and_come_back(client, connection):
    """Every message arrives once, and consumers see only the name of the queue."""
    queue = divided()
    producer = connection.Producer()
    for number in range(40):
        producer.publish(number, routing_key="q", declare=[queue])
    assert [10] * 4 == counts(connection)
    assert 40 == queue(connection.default_channel).queue_declare(passive=True).message_count
    seen = []

    def on_message(body, message):
        seen.append((body, message.delivery_info["routing_key"]))
        message.ack()

    with Consumer(connection, [queue], callbacks=[on_message]):
        while len(seen) < 40:
            connection.drain_events(timeout=10)
    assert sorted(seen) == [(number, "q") for number in range(40)]
    assert client.settled("q")


def test_one_prefetch_limit_holds_over_all_partitions(connection):
    """The prefetch count limits the leases of all partitions together."""
    queue, producer, held = divided(4), connection.Producer(), []
    for number in range(80):
        producer.publish(number, routing_key="q", declare=[queue])
    with Consumer(connection, [queue], callbacks=[lambda _, it: held.append(it)]) as consumer:
        consumer.qos(prefetch_count=8)
        leased = connection.transport.link.session.leases.held
        for _ in range(60):
            connection.drain_events(timeout=10)
            assert len(leased) <= 8
            if len(held) > 2:
                held.pop(0).ack()


def test_messages_of_one_key_keep_their_order(connection):
    """All messages of a key are stored in one partition, for any number of keys."""
    queue = divided(8)
    producer = connection.Producer()
    for number in range(100):
        key = f"customer-{number % 5}"
        headers = {"x-partition-key": key}
        producer.publish([key, number], routing_key="q", declare=[queue], headers=headers)
    assert 1 < sum(1 for count in counts(connection) if count) <= 5
    by_key = {}
    for key, number in take(connection, queue, 100):
        by_key.setdefault(key, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_a_key_is_heeded_by_who_has_declared_nothing(client, connection):
    """A publisher that did not declare the queue reads its layout once and routes keys alike."""
    queue = divided(8)
    queue(connection.default_channel).declare()
    headers = {"x-partition-key": 7}
    connection.Producer().publish(1, routing_key="q", headers=headers)
    before = counts(connection)
    other = client.connect()
    other.Producer().publish(2, routing_key="q", headers=headers)
    assert max(before) == 1
    assert [2 * count for count in before] == counts(connection)


@pytest.mark.parametrize("key", [1.5, True, ["a"], b"x"])
def test_a_key_that_is_none_is_refused(connection, key):
    """A key of an invalid type is refused before a message is stored."""
    divided()(connection.default_channel).declare()
    with pytest.raises(MessageRefused, match="x-partition-key"):
        connection.Producer().publish(1, routing_key="q", headers={"x-partition-key": key})
    assert [0] * 4 == counts(connection)


def test_who_has_declared_nothing_spreads_too(client, connection):
    """A publisher that did not declare the queue learns its partitions from the first publish."""
    divided()(connection.default_channel).declare()
    producer = client.connect().Producer()
    for number in range(9):
        producer.publish(number, routing_key="q")
    assert 4 == sum(1 for count in counts(connection) if count)


def test_a_batch_stores_those_that_go_together_in_one_step(connection):
    """A batch stores its messages by the hundred, each hundred in the next partition."""
    divided()(connection.default_channel).declare()
    producer = connection.Producer()
    with producer.batch(max_size=400):
        for number in range(400):
            producer.publish(number, routing_key="q")
    assert [100] * 4 == counts(connection)
    assert set(range(400)) == set(take(connection, Queue("q", no_declare=True), 400))


def test_messages_that_an_exchange_routes_are_spread(connection):
    """Messages that an exchange routes are spread, because a binding names the whole queue."""
    exchange = Exchange("x", "topic")
    queue = Queue("q", exchange, "a.#", queue_arguments={"x-partitions": 4})
    queue(connection.default_channel).declare()
    producer = connection.Producer()
    for number in range(20):
        producer.publish(number, exchange="x", routing_key="a.b")
    assert [5] * 4 == counts(connection)
    with producer.batch(max_size=20):
        for number in range(20):
            producer.publish(number, exchange="x", routing_key="a.b")
    assert 40 == sum(counts(connection))


def test_one_message_is_found_in_whichever_partition(connection):
    """``get`` searches all partitions, and an ack reaches the partition of the message."""
    queue = divided(8)(connection.default_channel)
    queue.declare()
    assert queue.get() is None
    for number in range(20):
        connection.Producer().publish(number, routing_key="q")
    got = [queue.get() for _ in range(20)]
    assert set(range(20)) == {message.payload for message in got}
    for message in got:
        message.ack()
    assert queue.get() is None


def test_get_finds_what_is_in_a_new_partition(client, connection, operator, monkeypatch):
    """``get`` checks a divided queue for new partitions, with one query, before it returns None."""
    channel, store = connection.default_channel, store_of(connection)
    asked = []
    layout = store.layout
    monkeypatch.setattr(store, "layout", lambda name: (asked.append(name), layout(name))[1])
    divided(2)(channel).declare()
    assert channel.basic_get("q") is None
    partitions.divide(operator, "q", 8)
    keys = (f"customer-{number}" for number in range(1000))
    headers = {"x-partition-key": next(key for key in keys if partition_of_key(key, 8) == 5)}
    client.connect().Producer().publish(1, routing_key="q", headers=headers)
    assert 1 == channel.basic_get("q", no_ack=True).payload
    asked.clear()
    assert [None] * 4 == [channel.basic_get("q") for _ in range(4)]
    assert ["q"] * 4 == asked
    Queue("plain")(channel).declare()
    monkeypatch.setattr(receiver, "_LAYOUT_KEPT_S", 1000.0)
    asked.clear()
    assert [None] * 4 == [channel.basic_get("plain") for _ in range(4)]
    assert ["plain"] == asked


def test_it_is_purged_and_deleted_as_one(connection):
    """Purging and deleting affect all partitions, and a new declaration restores them."""
    queue = divided()(connection.default_channel)
    queue.declare()
    for number in range(8):
        connection.Producer().publish(number, routing_key="q")
    assert 8 == connection.default_channel.client.llen("q")
    assert 8 == queue.purge()
    for number in range(8):
        connection.Producer().publish(number, routing_key="q")
    assert 8 == queue.delete()
    assert [] == store_of(connection).queues()
    connection.Producer().publish(1, routing_key="q")
    assert ["q"] == store_of(connection).queues()
    queue.declare()
    assert [1, 0, 0, 0] == counts(connection)


class Taking:
    """A consumer in its own thread; runs until the end of the block."""

    def __init__(self, connection, queue):
        self.connection = connection
        self.got = []
        self._queue = queue
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_):
        """Stop the thread, and wait for its end."""
        self._over.set()
        self._thread.join()

    def _run(self):
        with Consumer(self.connection, [self._queue], callbacks=[self._on_message]):
            while not self._over.is_set():
                with suppress(TimeoutError):
                    self.connection.drain_events(timeout=0.2)

    def _on_message(self, body, message):
        self.got.append(body)
        message.ack()


def test_partitions_come_and_go_under_a_consumer(client, operator):
    """A consumer follows new partitions and drains closed ones; each message is delivered once."""
    queue = divided(2)
    PUBLISHER.forget()  # pending publishes of other tests would keep its name in use
    publisher = client.connect()
    queue(publisher.default_channel).declare()
    with Taking(client.connect(), queue) as consumer:
        sent = 0
        for count in (8, 3, 5, 1):
            partitions.divide(operator, "q", count)
            for _ in range(50):
                publisher.Producer().publish(sent, routing_key="q")
                sent += 1
            wait_until(lambda sent=sent: len(consumer.got) >= sent, what="what was published")
        assert dict.fromkeys(range(sent), 1) == Counter(consumer.got)
        assert client.settled("q")
        # A partition that knows a publisher stays, because a publish to it may be retried.
        publisher.close()
        # A separate step lowers the end of the layout after the partition is gone.
        wait_until(lambda: Layout(1, 1) == operator.layout("q"), timeout_s=60)
        assert ["q"] == operator.queues()
        turns = consumer.connection.transport.schedule
        wait_until(lambda: ["q"] == [item.queue for item in turns.subscriptions])


def test_a_consumer_that_has_died_is_not_waited_for(client, operator):
    """A change of the partitions does not wait for a dead consumer; the others remove it."""
    queue = divided(2)
    queue(client.connect().default_channel).declare()
    with Taking(client.connect(), queue) as consumer:
        wait_until(lambda: len(consumer.connection.transport.schedule.subscriptions) == 2)
        operator.attach("q", "ghost:1:0/1", 1)
        began = time.monotonic()
        operators.settings(operator, "q", {"x-partitions": 4})
        waited_s = time.monotonic() - began
        assert all("ghost" not in str(operator.consumers_of(name)) for name in NAMES[:4])
        assert 4 == len(consumer.connection.transport.schedule.subscriptions)
    assert waited_s < 20


def test_what_is_only_sent_reaches_an_open_partition(client, operator):
    """With confirm="none", a message that met a closed partition is sent to an open one."""
    connection = client.connect(confirm="none")
    divided()(connection.default_channel).declare()
    partitions.divide(operator, "q", 1)
    for number in range(8):
        connection.Producer().publish(number, routing_key="q")
    store_of(connection).wait_for_replies()
    connection.transport.publishing.posting.do_duties()
    store_of(connection).wait_for_replies()
    assert [8, 0, 0, 0] == counts(connection)


def test_a_consumer_is_cancelled_from_every_partition(connection):
    """A cancelled consumer returns its reserved messages and leaves the register."""
    queue = divided()
    for number in range(8):
        connection.Producer().publish(number, routing_key="q", declare=[queue])
    consumer = Consumer(connection, [queue], callbacks=[lambda *_: None], prefetch_count=8)
    consumer.consume()
    assert 4 == len(connection.transport.schedule.subscriptions)
    consumer.cancel()
    assert [] == connection.transport.schedule.subscriptions
    assert 8 == sum(counts(connection))
    assert {()} == {tuple(store_of(connection).consumers_of(name)) for name in NAMES[:4]}


def test_a_lost_server_leaves_no_consumer_behind(redis_factory):
    """A consumer cancelled during an outage ends locally; the partitions still list its process."""
    server = redis_factory()
    with Connection(server.url("reliq"), transport_options=FAST) as connection:
        channel = connection.default_channel
        consumer = Consumer(channel, [divided()], callbacks=[lambda *_: None])
        consumer.consume()
        session = channel.transport.link.session
        server.kill()
        with pytest.raises(BrokerUnavailable):
            consumer.cancel()
        assert [] == channel.transport.schedule.subscriptions
        assert {} == session.registration.subscriptions
        assert set(NAMES[:4]) == set(session.registration.queues)


def test_partitions_that_do_not_come_are_asked_for_ever_less(connection, operator, monkeypatch):
    """Attempts to attach to missing partitions become rarer, until the layout changes.

    The process that was to create them may have died.
    """
    divided(1)(connection.default_channel).declare()
    transport = connection.transport
    store, registration = store_of(connection), transport.link.session.registration
    now = [1e9]
    monkeypatch.setattr(runner, "monotonic", lambda: now[0])
    asked = []
    for method in ("attach", "layout"):
        ask = getattr(store, method)
        monkeypatch.setattr(
            store,
            method,
            lambda name, *rest, ask=ask: (asked.append((name, now[0])), ask(name, *rest))[1],
        )

    def asked_of(name, seconds):
        asked.clear()
        for _ in range(seconds):
            now[0] += 1
            transport.pull.do_duties()
        return len({item for item in asked if item[0] == name})

    with Consumer(connection, [divided(1)], callbacks=[lambda *_: None]):
        registration.note_layout("q", Layout(1, 3))  # an interrupted change
        assert 2 <= asked_of(NAMES[1], 7) <= 4
        assert 8 <= asked_of(NAMES[2], 60) <= 16
        registration.note_layout("q", Layout(1, 4))
        assert 1 == asked_of(NAMES[2], 1)
        partitions.divide(operator, "q", 4)
        asked_of(NAMES[2], 15)  # shorter than the wait of an operator's command
        for name in NAMES[:4]:
            assert [transport.link.session.id] == operator.consumers_of(name)
        asked.clear()
        now[0] += 1000
        transport.pull.do_duties()
        assert [] == asked


def test_a_channel_that_is_closed_gives_all_back(connection):
    """A closed channel returns its messages of all partitions."""
    queue = divided()
    for number in range(8):
        connection.Producer().publish(number, routing_key="q", declare=[queue])
    channel = connection.channel()
    got = []
    consumer = Consumer(channel, [queue], callbacks=[lambda _, message: got.append(message)])
    consumer.qos(prefetch_count=8)
    consumer.consume()
    while len(got) < 8:
        connection.drain_events(timeout=10)
    channel.close()
    assert 8 == sum(counts(connection))


def test_length_limits_are_of_the_whole_queue(connection):
    """A length limit holds for the whole queue: each partition has an equal share."""
    queue = divided(4, **{"x-max-length": 20})
    for number in range(40):
        connection.Producer().publish(number, routing_key="q", declare=[queue])
    assert [5] * 4 == counts(connection)


def test_a_queue_that_is_there_is_declared_with_partitions(client, operator, caplog):
    """Declaring partitions leaves an existing queue's layout unchanged; the log names the command.

    All other arguments are compared.
    """
    Queue("q")(client.connect().default_channel).declare()
    divided(8)(client.connect().default_channel).declare()
    assert Layout(1, 1) == operator.layout("q")
    (said,) = [record.getMessage() for record in caplog.records if "--partitions" in record.msg]
    assert "reliq queue set q --partitions 8" in said
    with pytest.raises(PreconditionFailed, match="x-max-length"):
        divided(8, **{"x-max-length": 5})(client.connect().default_channel).declare()
    partitions.divide(operator, "q", 8)
    caplog.clear()
    for queue in (divided(8), Queue("q"), divided(8)):
        queue(client.connect().default_channel).declare()
        assert Layout(8, 8) == operator.layout("q")
    assert [] == [record for record in caplog.records if "--partitions" in record.msg]
    connection = client.connect()
    for number in range(16):
        connection.Producer().publish(number, routing_key="q", declare=[divided(8)])
    assert [2] * 8 == counts(connection)


def test_the_option_divides_queues_that_say_nothing(client):
    """The option ``partitions`` applies to durable queues declared without ``x-partitions``."""
    connection = client.connect(partitions=3)
    channel = connection.default_channel
    Queue("plain")(channel).declare()
    Queue("mailbox", auto_delete=True)(channel).declare()
    Queue("said", queue_arguments={"x-partitions": 2})(channel).declare()
    store = store_of(connection)
    assert Layout(3, 3) == store.layout("plain")
    assert Layout(1, 1) == store.layout("mailbox")
    assert Layout(2, 2) == store.layout("said")
    # Its stored declaration is the same, so a client without the option may declare it.
    other = client.connect()
    Queue("plain")(other.default_channel).declare()


def test_bad_declarations(connection):
    """An invalid declaration is refused before a write, with an error that names the fix."""
    channel = connection.default_channel
    for value in (0, 65, "8", 1.5, True):
        with pytest.raises(ConfigurationError, match="x-partitions to be a whole number from 1"):
            Queue("q", queue_arguments={"x-partitions": value})(channel).declare()
    with pytest.raises(ConfigurationError, match="requires a durable queue"):
        Queue("q", auto_delete=True, queue_arguments={"x-partitions": 2})(channel).declare()
    with pytest.raises(ConfigurationError, match="is the name of a partition"):
        Queue(NAMES[1])(channel).declare()
    with pytest.raises(MessageRefused, match="is a partition: publish to 'q'"):
        connection.Producer().publish(1, routing_key=NAMES[1])
    assert [] == store_of(connection).queues()


@pytest.mark.parametrize(
    "use",
    [
        lambda channel, name: channel.basic_consume(name, False, lambda _: None, "tag"),
        lambda channel, name: channel.basic_get(name),
        lambda channel, name: channel.queue_purge(name),
        lambda channel, name: channel.queue_delete(name),
    ],
    ids=["consume", "get", "purge", "delete"],
)
def test_a_partition_is_no_queue_for_an_application(connection, use):
    """Consume, get, purge and delete refuse the name of a partition, as a declaration does."""
    divided()(connection.default_channel).declare()
    for number in range(8):
        connection.Producer().publish(number, routing_key="q")
    with pytest.raises(ConfigurationError, match="is the name of a partition of 'q'"):
        use(connection.default_channel, NAMES[1])
    assert [2] * 4 == counts(connection)
    assert [] == connection.transport.schedule.subscriptions


def batched(connection, count, before_the_flush=lambda: None):
    """Publish *count* messages in one batch."""
    producer = connection.Producer()
    with producer.batch(max_size=count + 1):
        for number in range(count):
            producer.publish(number, routing_key="q")
        before_the_flush()


def test_a_batch_that_is_refused_names_the_queue(connection):
    """The error of a refused batch names the queue and not its full partitions."""
    limits = {"x-max-length": 8, "x-overflow": "reject-publish"}
    divided(4, **limits)(connection.default_channel).declare()
    with pytest.raises(QueueFull) as raised:
        batched(connection, 400)
    assert str(raised.value).startswith("queue 'q' has reached")
    assert "%p" not in str(raised.value)


def test_a_batch_that_is_uncertain_names_the_queue(redis_factory):
    """The error of an uncertain batch names the queue and not the partitions."""
    server = redis_factory()
    with Connection(server.url("reliq"), transport_options=FAST) as connection:
        divided()(connection.default_channel).declare()
        with pytest.raises(BatchUncertain) as raised:
            batched(connection, 400, server.kill)
    assert ("q",) == raised.value.queues
    assert "%p" not in str(raised.value)


def test_signals_name_the_queue(connection):
    """A signal names the queue and not the partition."""
    seen = []

    def on_published(_, *, queue, **__):
        seen.append(queue)

    divided()(connection.default_channel).declare()
    with message_published.connected_to(on_published):
        for number in range(4):
            connection.Producer().publish(number, routing_key="q")
    assert ["q"] * 4 == seen
