"""The order of delivery: priorities, first in first out, the position of a requeued message."""

from __future__ import annotations

import random

import pytest

from ..kombu_client import Taker, declare, get, publish


def drained(connection, queue):
    """Fetch and ack all messages of *queue*; return the bodies in order."""
    bodies = []
    while message := get(connection, queue):
        bodies.append(message.payload)
        message.ack()
    return bodies


def shuffled(*values):
    """Return the values in a mixed order that is the same in every run."""
    values = list(values)
    random.Random(7).shuffle(values)
    return values


def test_fifo(client):
    """Messages of one priority are delivered in the order of publication."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", *range(50))
    assert drained(connection, "q") == list(range(50))


def test_fifo_through_a_consumer(client):
    """A consumer with a prefetch limit receives messages in the order of publication."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=7)
    publish(connection, "q", *range(30))
    assert taker.take_bodies(30) == list(range(30))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, list(range(10))),
        ({"priority_order": "ascending"}, list(range(10))),
        ({"priority_order": "descending"}, list(range(9, -1, -1))),
    ],
)
def test_priorities(client, options, expected):
    """Priorities 0 to 9 are strict: 0 is first, or 9 with priority_order="descending"."""
    connection = client.connect(**options)
    declare(connection, "q")
    for priority in shuffled(*range(10)):
        publish(connection, "q", priority, priority=priority)
    assert drained(connection, "q") == expected


def test_fifo_inside_a_priority(client):
    """Messages of equal priority are delivered in the order of publication."""
    connection = client.connect()
    declare(connection, "q")
    for n in range(5):
        for priority in (5, 0, 9):
            publish(connection, "q", [priority, n], priority=priority)
    expected = [[priority, n] for priority in (0, 5, 9) for n in range(5)]
    assert drained(connection, "q") == expected


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_priorities_up_to_255(client, order):
    """A queue with x-max-priority 255 distinguishes all priorities."""
    connection = client.connect(priority_order=order)
    declare(connection, "q", max_priority=255)
    priorities = [0, 1, 9, 10, 11, 99, 128, 254, 255]
    for priority in shuffled(*priorities):
        publish(connection, "q", priority, priority=priority)
    assert drained(connection, "q") == sorted(priorities, reverse=order == "descending")


def test_a_late_urgent_message_overtakes(client):
    """A message with a more urgent priority overtakes earlier ones."""
    connection = client.connect()
    taker = Taker(connection, "q", prefetch_count=1)
    publish(connection, "q", "slow", "slower", priority=5)
    assert taker.take_bodies(1) == ["slow"]
    publish(connection, "q", "urgent", priority=0)
    # One message may have been reserved before the urgent one was published.
    assert "urgent" in taker.take_bodies(2)


@pytest.mark.parametrize("how", ["requeue", "reject", "recover", "close"])
def test_back_to_its_own_place(client, how):
    """A returned message keeps its priority and its position before later messages."""
    connection, other = client.connect(), client.connect()
    declare(connection, "q")
    publish(connection, "q", "first", "second", "third", priority=3)
    publish(connection, "q", "urgent", priority=0)
    publish(connection, "q", "lazy", priority=9)
    get(connection, "q").ack()
    held = get(connection, "q")
    assert held.payload == "first"
    if how == "requeue":
        held.requeue()
    elif how == "reject":
        held.reject(requeue=True)
    elif how == "recover":
        connection.default_channel.basic_recover(requeue=True)
    else:
        connection.release()
    assert drained(other, "q") == ["first", "second", "third", "lazy"]


def test_many_requeued_keep_their_order(client):
    """Messages requeued out of order are delivered in their first order."""
    connection = client.connect()
    declare(connection, "q")
    publish(connection, "q", *range(6))
    for message in shuffled(*[get(connection, "q") for _ in range(6)]):
        message.requeue()
    assert drained(connection, "q") == list(range(6))


def test_round_robin_is_fair(client):
    """By default, two queues are served in turn."""
    connection = client.connect()
    taker = Taker(connection, "a", "b", prefetch_count=1)
    publish(connection, "a", *["a"] * 20)
    publish(connection, "b", *["b"] * 20)
    bodies = taker.take_bodies(20)
    assert 9 <= bodies.count("a") <= 11


def test_round_robin_is_fair_with_a_prefetch(client):
    """A prefetch limit above 1 does not let one queue starve the other."""
    connection = client.connect()
    declare(connection, "a")
    declare(connection, "b")
    publish(connection, "a", *["a"] * 40)
    publish(connection, "b", *["b"] * 40)
    bodies = Taker(connection, "a", "b", prefetch_count=8).take_bodies(40)
    assert 12 <= bodies.count("a") <= 28


@pytest.mark.parametrize("prefetch", [1, 3, 8, 0])
@pytest.mark.parametrize(
    ("strategy", "names", "expected"),
    [
        ("priority", ["b", "a", "c"], ["b", "a", "c"]),
        ("sorted", ["b", "a", "c"], ["a", "b", "c"]),
    ],
)
def test_queue_order(client, strategy, names, expected, prefetch):
    """With "priority", the first named queue is served first; with "sorted", the first by name.

    A lower queue is served only after all higher ones, whatever the prefetch limit.
    """
    connection = client.connect(queue_order_strategy=strategy)
    for name in names:
        declare(connection, name)
        publish(connection, name, *[name] * 25)
    bodies = Taker(connection, *names, prefetch_count=prefetch).take_bodies(75)
    assert bodies == [name for name in expected for _ in range(25)]


@pytest.mark.parametrize("prefetch", [1, 3, 8])
def test_a_message_of_a_higher_queue_is_next(client, prefetch):
    """A new message of a higher queue follows at most the lower ones that were prefetched."""
    connection, other = client.connect(queue_order_strategy="priority"), client.connect()
    taker = Taker(connection, "high", "low", prefetch_count=prefetch)
    publish(other, "low", *["low"] * 40)
    assert ["low"] * 10 == taker.take_bodies(10)
    publish(other, "high", *["high"] * 20)
    bodies = taker.take_bodies(50)
    before = bodies.index("high")
    # One more: the first arrives at the moment of the the notification arrives.
    assert before <= prefetch + 1
    assert ["high"] * 20 == bodies[before : before + 20]
    assert 20 == bodies.count("high")


def test_a_divided_queue_has_its_rank(client):
    """The partitions of a queue are served in turn, and before the queues behind it."""
    connection = client.connect(queue_order_strategy="priority")
    for name in ("high", "low"):
        declare(connection, name, queue_arguments={"x-partitions": 3})
        publish(connection, name, *[name] * 30)
    bodies = Taker(connection, "high", "low", prefetch_count=4).take_bodies(60)
    assert ["high"] * 30 + ["low"] * 30 == bodies


def test_a_blocked_queue_does_not_block_the_other(client):
    """A queue without messages does not delay another queue."""
    connection = client.connect()
    taker = Taker(connection, "empty", "busy", prefetch_count=1)
    publish(connection, "busy", *range(10))
    assert [taker.take(timeout_s=0.4)[0].ack() for _ in range(10)] == [None] * 10
