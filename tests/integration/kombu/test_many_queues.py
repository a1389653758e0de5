"""One consumer of several queues: its prefetch limit, the order of turns, and stalls."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress

import pytest
from kombu import Connection
from kombu.asynchronous import Hub

from tests.support.proxy import Proxy

from ..kombu_client import FAST, Taker, declare, publish


def test_prefetch_is_a_limit_for_many_queues_together(client):
    """An event loop requests from all queues together, up to the channel's prefetch count."""
    connection = client.connect()
    queues = [f"q{number}" for number in range(5)]
    for queue in queues:
        declare(connection, queue)
        publish(connection, queue, *range(20))
    hub = Hub()
    try:
        connection.register_with_event_loop(hub)
        taker = Taker(connection, *queues, prefetch_count=16)
        loop = hub.create_loop()
        deadline = time.monotonic() + 60
        while len(taker.messages) < 16 and time.monotonic() < deadline:
            next(loop)
        assert 16 == len(taker.messages)
        assert 16 == sum(client.status(queue).unacked for queue in queues)
    finally:
        hub.close()


def test_a_message_is_found_in_whichever_of_many_queues(client):
    """A message in any of many queues is found, even if each reserve brings at most one message."""
    connection = client.connect()
    queues = [f"q{number}" for number in range(40)]
    taker = Taker(connection, *queues, prefetch_count=4)
    for queue in reversed(queues):
        publish(connection, queue, queue)
        (message,) = taker.take()
        assert queue == message.payload
        message.ack()
    assert taker.gets_nothing()


class SlowWaits(Proxy):
    """Delays each wait for a notification for a moment: later commands overtake it."""

    def _allowed(self, way, data):
        if way == "requests" and b"BLPOP" in data:
            time.sleep(0.1)
        return super()._allowed(way, data)


def test_a_wait_that_is_ended_before_it_begins(client):
    """A wait that is ended before it begins does not exclude the previously busy queue.

    Otherwise that queue would wait for a poll interval.
    """
    proxy = SlowWaits(client.server)
    try:
        taker = Taker(client.connect(proxy.url(), poll_interval=30), "q", "other")
        publisher = client.connect()
        publish(publisher, "q", 0)
        (first,) = taker.take()
        first.ack()
        later = threading.Timer(0.5, publish, (publisher, "q", 1))
        later.start()
        taker.connection.drain_events(timeout=10)
        later.join()
        (_, second) = taker.messages
        assert 1 == second.payload
        second.ack()
        taker.connection.close()
    finally:
        proxy.close()


def turn_after_turn(client, taker, turn):
    """Keep one queue full, publish to the other; return whether its message is delivered."""
    publisher = client.connect()
    publish(publisher, "busy", *range(50))
    deadline = time.monotonic() + 60
    quiet = 0
    while time.monotonic() < deadline:
        turn()
        while taker.messages:
            message = taker.messages.pop()
            message.ack()
            if message.payload == "quiet":
                return True
            publish(publisher, "busy", 1)
            quiet += 1
            if quiet == 100:
                publish(publisher, "quiet", "quiet")
    return False


@pytest.mark.parametrize("prefetch_count", [1, 4, 100])
def test_a_queue_that_was_empty_has_its_turn_beside_one_that_never_is(client, prefetch_count):
    """The notification of an empty queue is heard beside a queue that always has messages."""
    connection = client.connect()
    taker = Taker(connection, "busy", "quiet", prefetch_count=prefetch_count)
    assert taker.gets_nothing()
    assert turn_after_turn(client, taker, lambda: connection.drain_events(timeout=5))


@pytest.mark.parametrize("prefetch_count", [1, 4])
def test_a_queue_that_was_empty_has_its_turn_in_a_loop(client, prefetch_count):
    """An event loop serves a formerly empty queue, even if the prefetch allows one message."""
    connection = client.connect()
    hub = Hub()
    try:
        connection.register_with_event_loop(hub)
        taker = Taker(connection, "busy", "quiet", prefetch_count=prefetch_count)
        loop = hub.create_loop()
        assert turn_after_turn(client, taker, lambda: next(loop))
    finally:
        hub.close()


def test_two_consumers_of_one_queue_share_what_is_there(client):
    """Two consumers of one queue on one channel take turns."""
    connection = client.connect()
    first, second = (Taker(connection, "q", prefetch_count=10) for _ in range(2))
    publish(connection, "q", *range(40))
    while len(first.messages) + len(second.messages) < 10:
        connection.drain_events(timeout=5)
    assert first.messages
    assert second.messages


@pytest.mark.slow
def test_queues_that_are_due_while_the_broker_is_away(fresh_redis):
    """A reserve that could not be sent does not count: the queue is requested again later."""
    options = {**FAST, "socket_connect_timeout": 1}
    with Connection(fresh_redis.url("reliq"), transport_options=options) as connection:
        taker = Taker(connection, "a", "b", prefetch_count=10)
        assert taker.gets_nothing()
        for queue in ("a", "b"):
            publish(connection, queue, "late", headers={"x-delay": 2_000})
        due = time.monotonic() + 2
        assert taker.gets_nothing()  # also learns when they are due
        fresh_redis.kill()
        while time.monotonic() < due + 0.5:
            with suppress(*connection.connection_errors):
                connection.drain_events(timeout=0.1)
        fresh_redis.start()
        for queue in ("a", "b"):
            publish(connection, queue, queue)
        got = set()
        while got != {"a", "b"}:
            with suppress(*connection.connection_errors):
                connection.drain_events(timeout=5)
            got |= {message.payload for message in taker.messages} - {"late"}
        assert not any(item.in_flight for item in connection.transport.schedule.subscriptions)


class Interrupted(BaseException):
    """Raised by a signal."""


@pytest.mark.parametrize("queues", [["a"], ["a", "b"]])
def test_an_interrupt_while_a_reserve_is_waited_for(client, queues):
    """After an interrupted wait for a reserve, consuming continues without a loss."""

    def interrupt(*_):
        raise Interrupted

    connection = client.connect()
    taker = Taker(connection, *queues, prefetch_count=4)
    assert taker.gets_nothing()
    publish(connection, "a", "first")
    before = signal.signal(signal.SIGALRM, interrupt)
    client.raw.client_pause(500)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            connection.drain_events(timeout=5)
    finally:
        signal.signal(signal.SIGALRM, before)
    for queue in queues:
        publish(client.connect(), queue, queue)
    got = []
    while len(got) < 1 + len(queues):
        with suppress(*connection.connection_errors):
            connection.drain_events(timeout=5)
        while taker.messages:
            message = taker.messages.pop()
            got.append(message.payload)
            message.ack()
    assert sorted(["first", *queues]) == sorted(got)
