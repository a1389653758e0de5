"""Publishing: stored messages per second, by exchange, size, confirm and number of processes."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu import Exchange, Producer

from benchmarks import child, crowd, raw
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import (
    BARE,
    CLASSIC,
    CLIENT,
    KOMBU,
    QUORUM,
    RELIQ,
    TOOL,
    connect,
    is_reliq,
    queue_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.peers import Broker
    from benchmarks.setting import Setting

QUEUE = "benchmark"
CONTENT = {"content_type": "application/octet-stream", "content_encoding": "binary"}
SIZE = 1_000
SECONDS = 1.0
BATCH = 500
STORED_WITHIN_S = 60.0
LOOK_EVERY = 16


def body_of(size: int) -> bytes:
    """Return a body of *size* bytes, with all byte values."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def publish_loop(
    broker: Broker,
    exchange_name: str,
    seconds: float,
    size: int = SIZE,
    batch: bool = False,
    confirm: str | None = None,
    alone: bool = True,
    ready: Callable[[], None] = lambda: None,
) -> tuple[int, float]:
    """Publish for *seconds*, after a warm-up of a tenth of that; return count and seconds.

    '' is the anonymous exchange. If this process publishes `alone`, raises unless all published
    messages are stored at the end.
    """
    exchange = Exchange(exchange_name, type="direct")
    properties: dict[str, Any] = dict(CONTENT)
    if confirm is not None and is_reliq(broker["url"]):  # an option of reliq only
        properties["confirm"] = confirm
    with connect(broker) as connection:
        channel = connection.default_channel
        queue = queue_of(broker, QUEUE, exchange=exchange, routing_key=QUEUE)(channel)
        queue.declare()
        producer = Producer(channel, exchange=exchange, routing_key=QUEUE)
        body = body_of(size)

        def publish_for(duration: float) -> tuple[int, float]:
            count, start = 0, time.perf_counter()
            end = start + duration
            with producer.batch(max_size=BATCH) if batch else nullcontext():
                while time.perf_counter() < end:
                    for _ in range(LOOK_EVERY):
                        producer.publish(body, **properties)
                    count += LOOK_EVERY
            return count, time.perf_counter() - start

        before, _ = publish_for(seconds / 10)
        ready()
        count, took = publish_for(seconds)
        if alone:
            wait_until_stored(queue, before + count)
    return count, took


def wait_until_stored(queue: Any, expected: int) -> None:
    """Return when the bound queue has *expected* messages: without confirms, some may follow."""
    deadline = time.monotonic() + STORED_WITHIN_S
    while (stored := queue.queue_declare(passive=True).message_count) != expected:
        if time.monotonic() > deadline:
            raise AssertionError(f"published {expected} messages, {stored} are stored")
        time.sleep(0.01)


def measure(
    setting: Setting, key: str, exchange: str, processes: int = 1, **how: Any
) -> Mapping[str, float]:
    """Return the total messages per second of all processes."""
    seconds = setting.seconds(SECONDS)
    if setting.peer.scheme == "raw":
        return {key: raw.publish(setting, seconds, how.get("size", SIZE))}
    arguments = {"broker": setting.broker, "exchange_name": exchange, "seconds": seconds, **how}
    if processes == 1:
        count, took = child.run(publish_loop, **arguments)
        return {key: count / took}
    done = child.run(
        crowd.together,
        called=crowd.named(publish_loop),
        processes=processes,
        arguments={**arguments, "alone": False},
    )
    return {key: sum(count for count, _ in done) / max(took for _, took in done)}


def _figure(
    key: str,
    title: str,
    exchange: str,
    target: float | None = None,
    peers: tuple[str, ...] = (RELIQ, KOMBU, CLASSIC, QUORUM),
    core: bool = False,
    **how: Any,
) -> Figure:
    targets = () if target is None else (Target("ratio_at_least", target),)
    row = Row(f"publish-{key}", f"publish, {title}", "messages/s", targets)
    measured = partial(measure, key=row.key, exchange=exchange, **how)
    most_rounds = None if core else 2
    return Figure(row.key, (row,), measured, peers, most_rounds, warm_up=core, core=core)


_TWO = (RELIQ, KOMBU)
NAMED, ANONYMOUS = "benchmark", ""
FIGURES = (
    _figure("named", "named direct exchange", NAMED, 4, core=True),
    _figure(
        "anonymous",
        "anonymous exchange",
        ANONYMOUS,
        2.5,
        (RELIQ, KOMBU, CLASSIC, QUORUM, BARE, CLIENT, TOOL),
        core=True,
    ),
    _figure("none", 'confirm="none", named exchange', NAMED, 6, _TWO, core=True, confirm="none"),
    _figure("batch", "batch of 500, named exchange", NAMED, 1.3, _TWO, core=True, batch=True),
    _figure(
        "batch-anonymous", "batch of 500, anonymous exchange", ANONYMOUS, None, _TWO, batch=True
    ),
    _figure("100b", "named exchange, 100 B", NAMED, size=100),
    _figure("100kb", "named exchange, 100 kB", NAMED, size=100_000),
    _figure("4-processes", "named exchange, 4 processes", NAMED, processes=4),
    _figure(
        "replicated",
        'confirm="replicated", one replica',
        NAMED,
        None,
        ("reliq-replicated",),
        confirm="replicated",
    ),
    _figure(
        "fsynced",
        'confirm="fsynced", appendfsync always',
        NAMED,
        None,
        ("reliq-fsynced",),
        confirm="fsynced",
    ),
)
