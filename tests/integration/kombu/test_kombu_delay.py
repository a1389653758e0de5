"""Delay through Kombu's API: the header x-delay, refused values, and wake-ups of consumers."""

from __future__ import annotations

import threading
import time
from math import inf, nan

import pytest

from reliq import MessageRefused

from ..kombu_client import Taker, declare, get, publish

# A message is delivered in time only by a notification or by a known due time.
PATIENT = {"poll_interval": 60, "restore_interval": 60}


def delayed(connection, queue, body, delay_ms):
    """Publish *body* with a delay at the broker."""
    publish(connection, queue, body, headers={"x-delay": delay_ms})


def test_a_delayed_message_comes_when_it_is_due(client):
    """A delayed message is delivered soon after it is due; its header x-delayed has the delay."""
    connection = client.connect(**PATIENT)
    taker = Taker(connection, "q")
    before = time.monotonic()
    delayed(connection, "q", "late", 400)
    assert 1 == client.status("q").delayed
    (message,) = taker.take()
    assert 0.398 <= time.monotonic() - before < 5
    assert (400, None) == (message.headers["x-delayed"], message.headers.get("x-delay"))
    message.ack()


def test_a_message_that_is_forwarded_is_not_delayed_again(client):
    """A message forwarded with its headers is not delayed again."""
    connection = client.connect()
    taker = Taker(connection, "q")
    declare(connection, "next")
    delayed(connection, "q", "x", 50)
    (message,) = taker.take()
    publish(connection, "next", message.payload, headers=message.headers)
    message.ack()
    get(connection, "next").ack()


def test_a_requeued_message_is_not_delayed_again(client):
    """A requeued message was due before and is ready at once."""
    connection = client.connect()
    taker = Taker(connection, "q")
    delayed(connection, "q", "x", 50)
    taker.take()[0].requeue()
    assert client.status("q").delayed == 0
    taker.take()[0].ack()


def test_basic_get_gives_what_is_due(client):
    """``basic_get`` returns a delayed message when it is due, and not before."""
    connection = client.connect()
    declare(connection, "q")
    delayed(connection, "q", "x", 200)
    assert get(connection, "q") is None
    time.sleep(0.25)
    get(connection, "q").ack()


def test_the_caller_keeps_its_headers(client):
    """A publish does not change the caller's headers, because a retry uses them again."""
    connection = client.connect()
    declare(connection, "q")
    headers = {"task": "t", "eta": "2040-01-01T00:00:00+00:00", "x-delay": 1, "other": [1]}
    publish(connection, "q", "x", headers=headers)
    assert {"task", "eta", "x-delay", "other"} == headers.keys()
    assert ("2040-01-01T00:00:00+00:00", 1) == (headers["eta"], headers["x-delay"])


@pytest.mark.parametrize("value", [-1, "soon", nan, inf, True, "1.5", [1]], ids=repr)
@pytest.mark.parametrize("confirm", ["accepted", "none"])
def test_a_wrong_delay_is_refused(client, value, confirm):
    """An invalid delay is refused without a retry; the error names x-delay, nothing is stored."""
    connection = client.connect(confirm=confirm)
    declare(connection, "q")
    with pytest.raises(MessageRefused, match="x-delay"):
        publish(connection, "q", "x", headers={"x-delay": value}, retry=True)
    assert 0 == client.status("q").stored


def test_a_negative_expiration_is_refused(client):
    """A negative expiration is refused and not stored, although Kombu converts it to text."""
    connection = client.connect()
    declare(connection, "q")
    with pytest.raises(MessageRefused, match="expiration"):
        publish(connection, "q", "x", expiration=-1)
    assert 0 == client.status("q").stored


def test_an_earlier_one_wakes_a_consumer_that_sleeps_until_a_later_one(client):
    """A consumer that neither polls nor expects a message learns of an earlier due time."""
    connection, other = client.connect(**PATIENT), client.connect()
    taker = Taker(connection, "q")
    delayed(other, "q", "later", 60_000)
    assert taker.gets_nothing()
    publisher = threading.Timer(0.3, delayed, (other, "q", "sooner", 300))
    publisher.start()
    (message,) = taker.take(timeout_s=10)
    publisher.join()
    assert "sooner" == message.payload
    message.ack()


@pytest.mark.slow
def test_one_that_cannot_take_what_is_due_makes_it_ready_for_others(client):
    """A due message becomes ready for others when the informed consumer's prefetch is used up."""
    informed, waiting = client.connect(**PATIENT), client.connect(**PATIENT)
    first = Taker(informed, "q", prefetch_count=1)
    second = Taker(waiting, "q")
    assert first.gets_nothing()
    assert second.gets_nothing()
    delayed(informed, "q", "due", 1500)
    assert first.gets_nothing()
    publish(informed, "other", "x")
    held = Taker(informed, "other", channel=first.channel, prefetch_count=1)
    held.take()
    thread = threading.Thread(target=second.take, kwargs={"timeout_s": 20})
    thread.start()
    assert first.gets_nothing(for_s=3)
    thread.join(20)
    (message,) = second.messages
    assert "due" == message.payload
    message.ack()
    held.messages[0].ack()


def test_a_consumer_without_credit_rests_while_messages_are_due(client):
    """A consumer at its prefetch limit neither spins nor queries the broker repeatedly."""
    # A long lease, so that its renewals do not count here.
    connection = client.connect(**PATIENT, visibility_timeout=60)
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "held")
    taker.take()
    declare(connection, "q")
    for delay_ms in (300, 301, 302, 600, 900):
        delayed(connection, "q", "due", delay_ms)
    taker.consumer.qos(prefetch_count=2)
    assert taker.gets_nothing(for_s=0.1)
    taker.consumer.qos(prefetch_count=1)
    before = time.process_time(), client.raw.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert taker.gets_nothing(for_s=2)
    assert time.process_time() - before[0] < 1
    asked = client.raw.info("commandstats")["cmdstat_evalsha"]["calls"] - before[1]
    assert asked < 20
    assert 5 == client.status("q").ready
    taker.messages[0].ack()
    assert ["due"] * 5 == taker.take_bodies(5)
