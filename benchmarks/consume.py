"""Consuming: a callback that acks each message; the queue was filled beforehand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kombu import Consumer, Queue

from benchmarks import child
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import connect
from benchmarks.publish import QUEUE, publish_loop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kombu import Message

    from benchmarks.setting import Setting

NEXT_WITHIN_S = 30.0


def consume_loop(url: str, prefetch: int, warm_up: int, count: int) -> float:
    """Consume and ack `warm_up` and then `count` messages; return the seconds of the latter.

    The connection is closed inside the measured time, so that no ack is still under way.
    """
    connection = connect(url)
    channel = connection.default_channel
    seen = 0

    def received(_body: Any, message: Message) -> None:
        nonlocal seen
        message.ack()
        seen += 1

    consumer = Consumer(channel, [Queue(QUEUE)], callbacks=[received], prefetch_count=prefetch)
    consumer.consume()
    while seen < warm_up:
        connection.drain_events(timeout=NEXT_WITHIN_S)
    start = time.perf_counter()
    while seen < warm_up + count:
        connection.drain_events(timeout=NEXT_WITHIN_S)
    connection.close()
    return time.perf_counter() - start


def measure(setting: Setting, key: str, prefetch: int) -> Mapping[str, float]:
    """Return messages consumed and acked a second with this prefetch count."""
    warm_up, count = setting.size(500), setting.size(10_000)
    child.run(publish_loop, url=setting.url, exchange_name="", warm_up=warm_up, count=count)
    seconds = child.run(
        consume_loop, url=setting.url, prefetch=prefetch, warm_up=warm_up, count=count
    )
    unacked = setting.server.client.zcard(setting.peer.unacked_index(QUEUE))
    if unacked != 0:
        raise AssertionError(f"{unacked} messages were not acked within the measured time")
    return {key: count / seconds}


def _figure(prefetch: int, target: float) -> Figure:
    key = f"consume-{prefetch}"
    row = Row(
        key,
        f"consume and ack, prefetch {prefetch}",
        "messages/s",
        Target("ratio_at_least", target),
    )
    return Figure(key, (row,), lambda setting: measure(setting, key, prefetch))


FIGURES = (_figure(64, 20), _figure(4, 8))
