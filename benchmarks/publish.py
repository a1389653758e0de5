"""Publishing: one process, one message at a time, each confirmed before the next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kombu import Exchange, Producer, Queue

from benchmarks import child
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import connect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.setting import Setting

QUEUE = "benchmark"
BODY = bytes(range(256)) + bytes(44)
CONTENT = {"content_type": "application/octet-stream", "content_encoding": "binary"}


def publish_loop(url: str, exchange_name: str, warm_up: int, count: int) -> float:
    """Publish `warm_up` and then `count` messages; return the seconds the latter took."""
    exchange = Exchange(exchange_name, type="direct")
    with connect(url) as connection:
        channel = connection.default_channel
        queue = Queue(QUEUE, exchange, routing_key=QUEUE)(channel)
        queue.declare()
        producer = Producer(channel, exchange=exchange, routing_key=QUEUE)
        for _ in range(warm_up):
            producer.publish(BODY, **CONTENT)
        start = time.perf_counter()
        for _ in range(count):
            producer.publish(BODY, **CONTENT)
        seconds = time.perf_counter() - start
        stored = queue.queue_declare(passive=True).message_count
        if stored != warm_up + count:
            raise AssertionError(f"published {warm_up + count} messages, {stored} are stored")
    return seconds


def measure(setting: Setting, key: str, exchange_name: str) -> Mapping[str, float]:
    """Return confirmed messages a second through the exchange; '' is the anonymous one."""
    count = setting.size(10_000)
    seconds = child.run(
        publish_loop,
        url=setting.url,
        exchange_name=exchange_name,
        warm_up=setting.size(500),
        count=count,
    )
    return {key: count / seconds}


def _figure(key: str, title: str, exchange_name: str, target: float) -> Figure:
    row = Row(key, title, "messages/s", Target("ratio_at_least", target))
    return Figure(key, (row,), lambda setting: measure(setting, key, exchange_name))


FIGURES = (
    _figure("publish-named", "publish, named direct exchange", "benchmark", 3),
    _figure("publish-anonymous", "publish, anonymous exchange", "", 2),
)
