"""``reliq bench``: measure a broker from this machine, in a few seconds."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import click
import kombu

from . import console as out
from .options import on_brokers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reliq.admin import Inspector

    from .target import Target

_ASKED = 100
_SILENT_S = 30.0
# The queue expires, in case the command cannot delete it.
_EXPIRES_MS = 60_000


@dataclass(frozen=True, slots=True)
class Figures:
    """Measurements of one broker from this machine, with one process."""

    messages: int
    size: int
    """Bytes of each body."""
    prefetch: int
    answer_ms_p50: float
    """Duration of a simple query: the names of the queues."""
    answer_ms_p99: float
    publish_per_s: float
    """Publishes one after the other, each confirmed according to the options."""
    publish_ms_p50: float
    publish_ms_p99: float
    consume_per_s: float
    """Reserved and acknowledged messages."""


def _percentiles(times_s: Sequence[float]) -> tuple[float, float]:
    """Return the 50th and the 99th percentile, in ms."""
    cuts = quantiles(times_s, n=100)
    return round(cuts[49] * 1000, 3), round(cuts[98] * 1000, 3)


def _timed(times_s: list[float], work: Any) -> None:
    began = time.perf_counter()
    work()
    times_s.append(time.perf_counter() - began)


def _publish(
    connection: kombu.Connection, queue: kombu.Queue, messages: int, size: int, times: list[float]
) -> Iterator[int]:
    queue(connection.default_channel).declare()
    publish = partial(
        connection.Producer().publish,
        b"x" * size,
        exchange="",
        routing_key=queue.name,
        content_type="application/octet-stream",
        content_encoding="binary",
    )
    publish()  # do the one-time work before measuring
    for _ in range(messages):
        _timed(times, publish)
        yield 1


def _consume(
    connection: kombu.Connection,
    queue: kombu.Queue,
    messages: int,
    prefetch: int,
    times: list[float],
) -> Iterator[int]:
    taken = 0

    def take(message: Any) -> None:
        nonlocal taken
        message.ack()
        taken += 1

    with connection.channel() as channel:
        channel.basic_qos(0, prefetch, False)
        with kombu.Consumer(channel, [queue], on_message=take, auto_declare=False):
            began = time.perf_counter()
            while taken <= messages:
                before = taken
                connection.drain_events(timeout=_SILENT_S)
                yield taken - before
            times.append(time.perf_counter() - began)


@click.command()
@click.option("--messages", type=click.IntRange(10, 1_000_000), default=2000, show_default=True)
@click.option("--size", type=click.IntRange(0, 1_000_000), default=300, show_default=True,
              help="Bytes of each body.")  # fmt: skip
@click.option("--prefetch", type=click.IntRange(1, 10_000), default=64, show_default=True)
@on_brokers
def bench(target: Target, messages: int, size: int, prefetch: int) -> None:
    """Measure the broker from this machine, with one process.

    The command measures queries, publishes and deliveries. It uses its own queue and deletes
    it. The broker is busy for a few seconds.

    \b
    Examples:
      reliq bench
      reliq bench --messages 20000 --size 2000 --json
    """

    def measure(inspector: Inspector) -> Sequence[Figures]:
        answers: list[float] = []
        published: list[float] = []
        consumed: list[float] = []
        name = f"reliq-bench-{os.urandom(4).hex()}"
        arguments = {"x-expires": _EXPIRES_MS}
        queue = kombu.Queue(name, kombu.Exchange(""), name, queue_arguments=arguments)

        def steps(connection: kombu.Connection) -> Iterator[int]:
            try:
                for _ in range(_ASKED):
                    _timed(answers, inspector.queues)
                yield from _publish(connection, queue, messages, size, published)
                yield from _consume(connection, queue, messages, prefetch, consumed)
            finally:
                queue(connection.default_channel).delete()

        with kombu.Connection(inspector.url, transport_options=dict(target.options)) as connection:
            total, undone = 2 * messages, "the queue was deleted"
            out.progressing(inspector.broker, total, steps(connection), undone)
        of_publishes = (round(messages / sum(published), 1), *_percentiles(published))
        per_s = round((messages + 1) / sum(consumed), 1)
        return (Figures(messages, size, prefetch, *_percentiles(answers), *of_publishes, per_s),)

    def shown(rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
        table = out.listing(
            rows,
            {
                ">answer p50": lambda row: f"{row['answer_ms_p50']:.2f} ms",
                ">answer p99": lambda row: f"{row['answer_ms_p99']:.2f} ms",
                ">publish/s": lambda row: f"{row['publish_per_s']:,.0f}",
                ">publish p50": lambda row: f"{row['publish_ms_p50']:.2f} ms",
                ">publish p99": lambda row: f"{row['publish_ms_p99']:.2f} ms",
                ">consume/s": lambda row: f"{row['consume_per_s']:,.0f}",
            },
        )
        return table, f"{messages} messages of {size} bytes each"

    target.answer(measure, shown)
