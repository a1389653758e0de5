"""A retried publish is stored once: the connection is cut at every byte of it."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import contextmanager, suppress
from typing import ClassVar

import pytest
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError

from reliq import BatchUncertain, BrokerUnavailable
from reliq.message.envelope import decode
from reliq.message.queue_names import partition_names
from reliq.routing import partitions
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

from ..kombu_client import Client, Taker, get, payloads, publish

SOON = {"max_retries": 5, "interval_start": 0, "interval_step": 0, "interval_max": 0}


@contextmanager
def through_a_proxy(server, scheme):
    """Yield a proxy in front of *server*, and a client whose connections pass it."""
    proxy = Proxy(server)
    client = Client(server, proxy.url(scheme))
    try:
        yield proxy, client
    finally:
        proxy.disarm()
        client.close()
        client.audit()
        client.raw.close()
        proxy.close()


@pytest.fixture
def proxied(redis_server, redis_url, scheme):
    """Return (proxy, client) of the shared, emptied server."""
    with through_a_proxy(redis_server, scheme) as pair:
        yield pair


class Single:
    """One message to the anonymous exchange; its retry has the same properties, as usual."""

    copies = 1
    headers: ClassVar[dict] = {}

    def __init__(self, connection):
        self.channel = connection.default_channel
        self.message = None

    def declare(self):
        """Declare the target queues."""
        self.channel.queue_declare("q")

    def new(self, number):
        """Make the message."""
        headers = dict(self.headers)
        self.message = self.channel.prepare_message(b"%d" % number, properties={}, headers=headers)

    def attempt(self):
        """Try once."""
        self.channel.basic_publish(self.message, exchange="", routing_key="q")


class Routed(Single):
    """One message to a named exchange with two queues."""

    def declare(self):
        """Bind two queues."""
        for name in ("q", "r"):
            Queue(name, Exchange("e", "direct"), "key")(self.channel).declare()

    def attempt(self):
        """Try once."""
        self.channel.basic_publish(self.message, exchange="e", routing_key="key")


class Delayed(Single):
    """One message that is delayed at the broker."""

    def new(self, number):
        """Make the message with its delay."""
        super().new(number)
        self.message["headers"]["x-delay"] = 3_600_000


class Batched(Single):
    """A batch of three, flushed again."""

    copies = 3

    def new(self, number):
        """Make the batch, and fill it."""
        self.batch = self.channel.create_publish_batch(100)
        for part in range(self.copies):
            super().new(number * 10 + part)
            self.batch.publish(self.message, exchange="", routing_key="q")

    def attempt(self):
        """Flush once more than the batch's own retry."""
        self.batch.flush()


def bodies(client, queue):
    """Return the bodies of all messages stored in *queue*, in any state."""
    stored = client.raw.hvals(f"reliq:{{{queue}}}:messages")
    return sorted(int(decode(envelope).body) for envelope in stored)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        *[(kind, 4) for kind in (Single, Routed, Delayed, Batched)],
        *[
            pytest.param(kind, 1, marks=pytest.mark.long)
            for kind in (Single, Routed, Delayed, Batched)
        ],
    ],
)
def test_a_cut_at_every_byte(proxied, kind, step):
    """A message is stored once after a cut at any byte of the request or the reply, and a retry.

    CI cuts requests after every fourth byte, with a random offset, and replies at every byte.
    """
    offset = random.randrange(step)
    print(f"offset {offset}")
    proxy, client = proxied
    connection = client.connect()
    way = kind(connection)
    way.declare()
    expected = []

    def publish(number):
        """Publish one, and retry until it is confirmed; return the number of tries."""
        way.new(number)
        first = 0 if way.copies == 1 else number * 10
        expected.extend(range(first, first + way.copies) if way.copies > 1 else [number])
        for tries in range(1, 6):
            try:
                way.attempt()
            except BrokerUnavailable:
                continue
            return tries
        raise AssertionError("five tries did not do")

    publish(1)
    seen = []
    for number in range(2, 6):  # some digits vary, and sometimes a settled number
        before = dict(proxy.forwarded)
        publish(number)
        seen.append({name: proxy.forwarded[name] - before[name] for name in before})
    # The cut publishes are at least as long as the shortest of these, because their bodies have
    # more digits.
    lengths = {name: min(one[name] for one in seen) for name in ("requests", "replies")}
    assert lengths["requests"] > 300
    number = 6
    for name, cut in (("requests", proxy.cut_requests), ("replies", proxy.cut_replies)):
        begin, by = (1 + offset, step) if name == "requests" else (0, 1)
        for after in range(begin, lengths[name], by):
            cuts = proxy.cuts
            cut(after)
            publish(number)
            proxy.disarm()
            number += 1
            assert proxy.cuts == cuts + 1, (name, after)
    assert expected == bodies(client, "q")
    assert len(expected) == client.status("q").ledger["published"]
    if kind is Routed:
        assert expected == bodies(client, "r")


def cuts_of(proxy):
    """Yield functions that arm the proxy: to cut in and before the reply, and in the request."""
    for after in (0, 1, 2):
        yield lambda after=after: proxy.cut_replies(after)
    for after in (1, 150, 300, 450):
        yield lambda after=after: proxy.cut_requests(after)


def test_kombus_retry(proxied):
    """Producer.publish(retry=True) over cut connections stores each message once."""
    proxy, client = proxied
    connection = client.connect()
    producer = connection.Producer()
    routed = Queue("r", Exchange("e", "topic"), "a.#")(connection.default_channel)
    routed.declare()
    number = 0
    for arm in cuts_of(proxy):
        for target in ({"exchange": "", "routing_key": "q"}, {"exchange": "e", "routing_key": "a"}):
            producer.publish(number, **target)  # the next one is then a single exchange
            arm()
            cuts = proxy.cuts
            producer.publish(number + 1, retry=True, retry_policy=SOON, **target)
            assert proxy.cuts == cuts + 1
            number += 2
    stored = [body for queue in ("q", "r") for body in bodies(client, queue)]
    assert list(range(number)) == sorted(stored)
    assert number == sum(client.status(queue).ledger["published"] for queue in ("q", "r"))


def test_kombus_retry_in_a_batch(proxied):
    """A batch retries a cut flush once on its own, so its block ends without an error."""
    proxy, client = proxied
    producer = client.connect().Producer()
    number = 0
    for arm in cuts_of(proxy):
        with producer.batch(max_size=4):
            for _ in range(10):  # it flushes twice on its own, and at the end
                if number % 10 == 3:
                    arm()
                producer.publish(number, routing_key="q", retry=True, retry_policy=SOON)
                number += 1
    assert 7 == proxy.cuts
    assert list(range(number)) == bodies(client, "q")
    assert number == client.status("q").ledger["published"]


def test_celerys_retry(redis_server, redis_url, site_factory):
    """apply_async with Celery's publish retry over cut connections stores each task once."""
    site = site_factory(redis_server, task_publish_retry=True, task_publish_retry_policy=SOON)
    proxy = Proxy(redis_server)
    site.broker = proxy.url()
    try:
        ids = []
        for arm in cuts_of(proxy):
            ids.append(site.send("record").id)
            arm()
            ids.append(site.send("record").id)
        assert 7 == proxy.cuts
        assert len(ids) == site.counts()["ready"]
        worker = site.worker(pool="solo")
        wait_until(lambda: len(site.journal.finished()) >= len(ids), what=worker.tail)
        assert sorted(ids) == sorted(site.journal.finished())
        site.settled()
    finally:
        site.close()
        proxy.close()


@pytest.mark.parametrize("kind", [Single, Routed, Delayed, Batched])
def test_redis_restarts_before_the_retry(redis_factory, scheme, kind):
    """A publish is stored once if its reply is lost and Redis restarts from its file."""
    server = redis_factory(appendonly=True)
    with through_a_proxy(server, scheme) as (proxy, client):
        way = kind(client.connect())
        way.declare()
        way.new(0)
        way.attempt()  # from here on the server knows the script
        way.new(1)
        proxy.cut_replies(0)
        restarted = []

        def restart_first(*_):
            restarted.append(True)
            server.restart()

        if kind is Batched:  # whose flush would retry before the restart
            between_tries(way.channel, restart_first)
            way.attempt()
        else:
            with pytest.raises(BrokerUnavailable):
                way.attempt()
            restart_first()
            way.attempt()
        assert [True] == restarted
        client.raw = server.client()
        assert 2 * way.copies == client.status("q").ledger["published"]
        assert 2 * way.copies == len(set(bodies(client, "q"))) == len(bodies(client, "q"))


@pytest.mark.parametrize("key", [None, "k7"])
@pytest.mark.parametrize("kind", [Single, Routed, Delayed, Batched])
def test_the_queue_is_divided_before_the_retry(proxied, redis_url, kind, key):
    """A retry goes to the queue of the first try, even if the queue has been divided meanwhile."""
    proxy, client = proxied
    way = kind(client.connect())
    way.headers = {} if key is None else {"x-partition-key": key}
    way.declare()
    known = way.channel.transport.link.store.partitions
    operator = store_of(client.connect(redis_url))

    def divide():
        partitions.divide(operator, "q", 8)
        # A new connection learns this from its declaration or a query.
        known["q"] = 8

    for number in range(4):  # the message's partition may be the queue's own one
        known["q"] = 1  # no query is sent, whose reply would be cut instead
        way.new(number)
        proxy.cut_replies(0)
        try_around(way, divide)
        # The next message is in none of the earlier partitions.
        partitions.divide(operator, "q", 1)
    stored = [body for name in partition_names("q", 8) for body in bodies(client, name)]
    assert 4 * way.copies == len(set(stored)) == len(stored)


def store_of(connection):
    """Return the store of a connection."""
    connection.default_channel  # noqa: B018 - it connects
    return connection.transport.link.store


def try_around(way, between):
    """Make a try, which fails, call *between*, and try again."""
    if isinstance(way, Batched):  # whose flush would retry before that
        between_tries(way.channel, between)
    else:
        with pytest.raises(BrokerUnavailable):
            way.attempt()
        between()
    way.attempt()


def between_tries(channel, do):
    """Call *do* when the batch takes another connection for its second try."""
    spare_store = channel.transport.link.session.spare_store

    def doing():
        do()
        return spare_store()

    channel.transport.link.session.spare_store = doing


def test_redis_restarts_before_kombus_retry(redis_factory, scheme):
    """A publish is stored once if Redis restarts before Kombu's own retry, which reconnects."""
    server = redis_factory(appendonly=True)
    with through_a_proxy(server, scheme) as (proxy, client):
        producer = client.connect().Producer()
        producer.publish(1, routing_key="q")
        proxy.cut_replies(0)
        errors = []

        def restart(exc, interval):
            errors.append(exc)
            server.restart()

        policy = {**SOON, "errback": restart}
        producer.publish(2, routing_key="q", retry=True, retry_policy=policy)
        assert 1 == len(errors)
        assert isinstance(errors[0], BrokerUnavailable)
        client.raw = server.client()
        assert [1, 2] == bodies(client, "q")
        assert 2 == client.status("q").ledger["published"]


def publish_surely(channel, numbers, retried):
    """Publish each separately until it is confirmed."""
    for number in numbers:
        message = channel.prepare_message(b"%d" % number, properties={})
        while True:
            try:
                channel.basic_publish(message, exchange="", routing_key="q")
            except BrokerUnavailable:
                retried.append(number)
                continue
            break


def flush_surely(channel, numbers, retried):
    """Publish five at a time, and flush until all are confirmed."""
    for start in range(0, len(numbers), 5):
        batch = channel.create_publish_batch(100)
        for number in numbers[start : start + 5]:
            message = channel.prepare_message(b"%d" % number, properties={})
            batch.publish(message, exchange="", routing_key="q")
        while True:
            try:
                batch.flush()
            except BatchUncertain:
                retried.append(numbers[start])
                continue
            break


@contextmanager
def random_cuts(proxy):
    """Cut in a thread, repeatedly and at random."""
    ended = threading.Event()
    dice = random.Random(7)

    def cut():
        while not ended.wait(0.004):
            if dice.random() < 0.5:
                proxy.cut_requests(dice.randrange(1, 3000))
            else:
                proxy.cut_replies(dice.randrange(30))

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        yield
    finally:
        ended.set()
        cutter.join()
        proxy.disarm()


@pytest.mark.parametrize("surely", [publish_surely, flush_surely])
def test_threads_share_a_channel_under_cuts(proxied, surely):
    """Four threads publish over one channel with random cuts, and each message is stored once."""
    proxy, client = proxied
    channel = client.connect().default_channel
    channel.queue_declare("q")
    failures, retried = [], []

    def work(numbers):
        try:
            surely(channel, numbers, retried)
        except Exception as exc:  # noqa: BLE001 - reported below
            failures.append(exc)

    published = 0
    with random_cuts(proxy):
        while proxy.cuts <= 3 and not failures:
            threads = [
                threading.Thread(target=work, args=(range(start, start + 60),))
                for start in range(published, published + 240, 60)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            published += 240
    assert [] == failures
    assert list(range(published)) == bodies(client, "q")
    assert published == client.status("q").ledger["published"]


def test_what_was_received_is_a_new_message(proxied):
    """A message with the properties of a received one is new, even if that one was retried."""
    proxy, client = proxied
    connection = client.connect()
    producer = connection.Producer()
    producer.publish(0, routing_key="q")
    proxy.cut_replies(0)
    producer.publish(1, routing_key="q", retry=True, retry_policy=SOON)
    first = get(connection, "q")
    second = get(connection, "q")
    for message in (first, second):
        again = dict(message.properties)
        again.pop("delivery_info", None)
        proxy.cut_replies(0)
        producer.publish(
            message.payload + 10, routing_key="q", retry=True, retry_policy=SOON, **again
        )
        message.ack()
    assert [10, 11] == sorted(payloads(Taker(client.connect(), "q").take(2)))
    assert 4 == client.status("q").ledger["published"]


class Refusing:
    """A listener that closes and counts each connection."""

    def __init__(self):
        self.tries = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._refuse)
        self._thread.start()

    def _refuse(self):
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.tries += 1
                connection.close()

    def close(self):
        """Close the listener."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@pytest.fixture
def refusing():
    """Return a broker that closes each connection."""
    refusing = Refusing()
    yield refusing
    refusing.close()


@pytest.mark.parametrize("scheme", ["reliq", "redis"])
def test_a_policy_is_not_tried_twice(refusing, scheme):
    """A publish without a broker makes the policy's number of retries, like with redis://."""
    policy = {"max_retries": 3, "interval_start": 0, "interval_step": 0.01, "interval_max": 0.01}
    url = f"{scheme}://127.0.0.1:{refusing.port}/0"
    with Connection(url) as connection:
        producer = connection.Producer()
        tries = []
        for _ in range(3):
            before = refusing.tries
            with pytest.raises(OperationalError):
                producer.publish("x", routing_key="q", retry=True, retry_policy=policy)
            tries.append(refusing.tries - before)
    assert [4, 4, 4] == tries


@pytest.mark.slow
@pytest.mark.parametrize("tried", [False, True])
def test_a_policy_outlasts_the_time_to_connect(fresh_redis, tried):
    """A first publish without a broker is retried as often as its policy states.

    Kombu gives up connecting after connect_timeout and raises an error of its own. The same holds
    after an earlier attempt to connect without a policy.
    """
    fresh_redis.stop()
    failed = []
    policy = {"max_retries": 100, "interval_start": 0.1, "interval_max": 0.2}

    def send():
        with Connection(fresh_redis.url(), connect_timeout=0.5) as connection:
            if tried:
                with pytest.raises(BrokerUnavailable):
                    connection.connect()
            try:
                publish(connection, "q", "x", retry=True, retry_policy=policy)
            except OperationalError as exc:
                failed.append(exc)

    publisher = threading.Thread(target=send)
    publisher.start()
    publisher.join(3.0)
    fresh_redis.start()
    publisher.join()
    assert [] == failed
    with Connection(fresh_redis.url()) as connection:
        assert ["x"] == Taker(connection, "q").take_bodies(1)
