"""Callbacks that raise: the application receives the exception, and the delivery counts."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from kombu import Connection
from kombu.serialization import registry

from reliq.errors import BrokerUnavailable
from tests.support.proxy import Proxy
from tests.support.waiting import stays_true, wait_until

from ..kombu_client import FAST, declare, get, publish


class AsToldError(Exception):
    """Raised by the callback."""


def consume(connection, callback, **options):
    """Consume from `q` with *callback*; return the consumer."""
    queue = declare(connection, "q")
    consumer = connection.Consumer([queue], **options)
    consumer.on_message = callback
    consumer.consume()
    return consumer


def failing(finish=lambda message: None, error=AsToldError):
    """Return a callback that finishes its message and then raises."""

    def callback(message):
        finish(message)
        raise error("as told")

    return callback


def fail_once(client, callback, error=AsToldError, **options):
    """Consume until the callback raises, over a connection that is closed afterwards."""
    connection = client.connect(**options)
    consume(connection, callback)
    with pytest.raises(error):
        connection.drain_events(timeout=5)
    connection.release()


def test_a_callback_that_raises_is_a_failed_delivery(client):
    """A message whose callback raised is returned, and counted, when the connection closes."""
    publish(client.connect(), "q", "x")
    fail_once(client, failing())
    fail_once(client, failing())
    message = get(client.connect(), "q")
    assert (2, True) == (message.headers["x-delivery-count"], message.headers["redelivered"])
    message.ack()


def test_a_signal_handler_that_raises_is_no_failed_delivery(client):
    """A message in whose callback a signal handler raised is returned, uncounted."""
    publish(client.connect(), "q", "x")

    def out_of_time(number, frame):
        raise AsToldError("a time limit of the application")

    before = signal.signal(signal.SIGALRM, out_of_time)
    try:
        fail_once(client, lambda message: signal.raise_signal(signal.SIGALRM))
    finally:
        signal.signal(signal.SIGALRM, before)
    message = get(client.connect(), "q")
    assert "x-delivery-count" not in message.headers
    message.ack()


def test_a_signal_handler_that_raises_in_a_decoder(client):
    """The exception is raised as it is, and a message that is decoded afterwards is acked."""
    connection = client.connect()
    decoded = []

    def decode(body):
        decoded.append(body)
        if len(decoded) == 1:
            signal.raise_signal(signal.SIGALRM)
        return "x"

    def out_of_time(number, frame):
        raise AsToldError("a time limit of the application")

    registry.register("slow", str, decode, "application/x-slow", "utf-8")
    before = signal.signal(signal.SIGALRM, out_of_time)
    try:
        publish(connection, "q", "x", serializer="slow")
        message = get(connection, "q")
        with pytest.raises(AsToldError):
            message.decode()
        assert "x" == message.decode()
        message.ack()
    finally:
        signal.signal(signal.SIGALRM, before)
        registry.unregister("slow")
    wait_until(lambda: 0 == client.status("q").unacked)
    assert [] == client.dead_letters("q")


def test_it_meets_its_limit(client):
    """A message whose callbacks raise becomes a dead letter at the delivery limit."""
    publish(client.connect(), "q", "x")
    for _ in range(3):
        fail_once(client, failing(), delivery_limit=3)
    (dead_letter,) = client.dead_letters("q")
    assert ("delivery_limit", 3) == (dead_letter.reason, dead_letter.count)


def test_it_stays_the_application_s(client):
    """Until the channel closes, the application may ack the message; then no failure counts."""
    connection = client.connect()
    publish(connection, "q", "x")
    seen = []
    consume(connection, failing(seen.append))
    with pytest.raises(AsToldError):
        connection.drain_events(timeout=5)
    assert 1 == client.status("q").unacked
    seen[0].ack()
    connection.release()
    assert client.settled("q")


@pytest.mark.parametrize("finish", ["ack", "reject", "requeue"])
def test_what_was_finished_before_is_finished(client, finish):
    """A message finished by its callback before the exception stays finished, and counts once."""
    publish(client.connect(), "q", "x")
    fail_once(client, failing(lambda message: getattr(message, finish)()))
    status = client.status("q")
    expected = {"ack": (0, 0), "reject": (0, 1), "requeue": (1, 0)}[finish]
    assert expected == (status.ready, status.dead)
    if finish == "requeue":
        message = get(client.connect(), "q")
        assert 1 == message.headers["x-delivery-count"]
        message.ack()


def test_others_of_the_channel_are_not_counted(client):
    """Other messages of the channel are returned without a count."""
    connection = client.connect()
    publish(connection, "q", "fine", "bad")

    def callback(message):
        if message.payload == "bad":
            raise AsToldError

    consume(connection, callback)
    connection.drain_events(timeout=5)
    with pytest.raises(AsToldError):
        connection.drain_events(timeout=5)
    connection.release()
    other = client.connect()
    back = [get(other, "q"), get(other, "q")]
    counts = {message.payload: message.headers.get("x-delivery-count") for message in back}
    assert {"fine": None, "bad": 1} == counts


@pytest.mark.parametrize("error", [BrokerUnavailable, KeyboardInterrupt, SystemExit])
def test_what_is_not_the_message_s_fault_is_not_counted(client, error):
    """A lost connection or an interrupt during the callback does not count against the message."""
    publish(client.connect(), "q", "x")
    fail_once(client, failing(error=error), error)
    message = get(client.connect(), "q")
    assert "x-delivery-count" not in message.headers
    message.ack()


def test_a_message_that_nobody_acknowledges_is_gone(client):
    """With no_ack, a message whose callback raised is gone."""
    connection = client.connect()
    publish(connection, "q", "x")
    consume(connection, failing(), no_ack=True)
    with pytest.raises(AsToldError):
        connection.drain_events(timeout=5)
    connection.release()
    assert client.settled("q")


@contextmanager
def cut(proxy):
    """End the connections to a server, and refuse new ones."""
    proxy.refusing = True
    proxy.cut_all()
    try:
        yield
    finally:
        proxy.refusing = False


@pytest.fixture
def broker(redis_server, url):
    """Return the URL of a broker, and a function that makes a context of an outage."""
    del url  # audited
    proxy = Proxy(redis_server)
    yield proxy.url(), lambda: cut(proxy)
    proxy.close()


@pytest.mark.parametrize("end", ["release", "collect"])
@pytest.mark.parametrize("error", [AsToldError, BrokerUnavailable, KeyboardInterrupt])
def test_an_error_that_is_kept_keeps_no_message(broker, error, end):
    """An exception kept after an outage does not keep the lease of its unprocessed message.

    The frames of the exception refer to the message, but no callback processes it any more.
    """
    url, outage = broker
    # Longer than the test: the end of a lease would also return the message.
    options = {**FAST, "visibility_timeout": 100, "socket_timeout": 2}
    with Connection(url, transport_options=options) as connection:
        publish(connection, "q", "x")
        consume(connection, failing(error=error))
        with pytest.raises(error) as kept:
            connection.drain_events(timeout=5)
        with outage():
            getattr(connection, end)()
        message = wait_until(lambda: get(connection, "q"))
        assert message.headers["redelivered"]
        assert (error is AsToldError) == ("x-delivery-count" in message.headers)
        message.ack()
    assert kept.value.args == ("as told",)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["release", "collect"])
def test_who_still_works_on_a_message_keeps_it(broker, end):
    """After an outage, a message still in use keeps its lease until it is acked.

    The callback may have passed it to a thread.
    """
    url, outage = broker
    options = {**FAST, "socket_timeout": 2}
    seen = []
    with Connection(url, transport_options=options) as connection:
        publish(connection, "q", "x")
        consume(connection, seen.append)
        connection.drain_events(timeout=5)
        with outage():
            getattr(connection, end)()
        stays_true(lambda: get(connection, "q") is None, for_s=2.5)
        seen[0].ack()
        wait_until(lambda: connection.transport.link.session.idle)


def test_an_ack_after_all_counts(broker):
    """After an outage, the message of a callback that raised may still be acked."""
    url, outage = broker
    options = {**FAST, "visibility_timeout": 100, "socket_timeout": 2}
    seen = []
    with Connection(url, transport_options=options) as connection:
        publish(connection, "q", "x")
        consume(connection, failing(seen.append))
        with pytest.raises(AsToldError):
            connection.drain_events(timeout=5)
        with outage():
            connection.collect()
            seen[0].ack()
        assert get(connection, "q") is None


class Asleep:
    """A store whose releases block until `awake` is set."""

    def __init__(self, store):
        self.store, self.reached, self.awake = store, Event(), Event()

    def __getattr__(self, name):
        """Delegate to the store."""
        return getattr(self.store, name)

    def release(self, *arguments):
        """Release the messages after `awake` is set."""
        self.reached.set()
        assert self.awake.wait(20)
        return self.store.release(*arguments)


def test_a_return_that_fails_late_is_owed_still(broker):
    """A return that fails after the end of the last connection stays pending and is sent later."""
    url, outage = broker
    options = {**FAST, "visibility_timeout": 100, "socket_timeout": 2}
    with Connection(url, transport_options=options) as connection, ThreadPoolExecutor(1) as pool:
        publish(connection, "q", "x")
        message = get(connection, "q")
        session = connection.transport.link.session
        session.background.stop()  # it would send the return first
        with outage(), pytest.raises(BrokerUnavailable):
            message.requeue()
        store = Asleep(session.open_store())
        sent = pool.submit(session.send_owed, store)
        store.reached.wait(20)
        connection.release()
        with outage():
            store.awake.set()
            with pytest.raises(BrokerUnavailable):
                sent.result()
        store.close()
        message = wait_until(lambda: get(connection, "q"))
        message.ack()
