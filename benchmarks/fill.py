"""Fills queues fast before a measurement, without being measured."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from kombu import Producer

from benchmarks import child
from benchmarks.peers import connect, queue_of
from benchmarks.publish import BATCH, CONTENT, SIZE, STORED_WITHIN_S, body_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers import Broker
    from benchmarks.setting import Setting


def fill_queues(
    broker: Broker, names: Sequence[str], count: int, size: int, headers: dict[str, Any]
) -> None:
    """Publish *count* messages, one to each queue in turn; return when they are stored."""
    # Confirms would only slow it: the stored messages are counted at the end.
    unconfirmed: dict[str, Any] = {"confirm_publish": False} if "amqp" in broker["url"] else {}
    with connect(broker, **unconfirmed) as connection:
        channel = connection.default_channel
        queues = [queue_of(broker, name)(channel) for name in names]
        before = sum(_size(queue) for queue in queues)
        producer, body = Producer(channel), body_of(size)
        batch = getattr(producer, "supports_batch_publish", False)
        with producer.batch(max_size=BATCH) if batch else nullcontext():
            for number in range(count):
                name = names[number % len(names)]
                producer.publish(body, routing_key=name, headers=headers, **CONTENT)
        deadline = time.monotonic() + STORED_WITHIN_S
        while not headers and sum(_size(queue) for queue in queues) != before + count:
            if time.monotonic() > deadline:
                raise AssertionError(f"the {count} messages are not all stored")
            time.sleep(0.01)


def _size(queue: Any) -> int:
    queue.declare()
    try:
        return int(queue.queue_declare(passive=True).message_count)
    except queue.channel.connection.client.channel_errors:
        return 0  # Kombu's redis:// does not know an empty queue


def fill(
    setting: Setting,
    count: int,
    names: Sequence[str] = ("benchmark",),
    size: int = SIZE,
    headers: dict[str, Any] | None = None,
    broker: Broker | None = None,
) -> None:
    """Fill the setting's queues in a separate process; by default as its broker declares them."""
    child.run(
        fill_queues,
        broker=broker or setting.broker,
        names=list(names),
        count=count,
        size=size,
        headers=headers or {},
    )
