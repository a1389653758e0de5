"""``reliq bench``: how fast the user's own broker is, from here, in some seconds."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
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
# The queue is temporary, for where the command could not delete it.
_EXPIRES_MS = 60_000


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured on one broker, from where the command runs, with one process."""

    messages: int
    size: int
    """Bytes of each body."""
    prefetch: int
    answer_ms_p50: float
    """How long the broker takes to answer a simple question: the names of its queues."""
    answer_ms_p99: float
    publish_per_s: float
    """Published one after the other, each confirmed as the options say."""
    publish_ms_p50: float
    publish_ms_p99: float
    consume_per_s: float
    """Taken and acknowledged."""


def _percentile(times_s: Sequence[float], percent: int) -> float:
    """Return that percentile, in ms."""
    ordered = sorted(times_s)
    return round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] * 1000, 3)


def _timed(times_s: list[float], work: Any) -> None:
    began = time.perf_counter()
    work()
    times_s.append(time.perf_counter() - began)


class Bench:
    """One run against one broker, in a queue of its own."""

    def __init__(self, inspector: Inspector, messages: int, size: int, prefetch: int) -> None:
        self._inspector = inspector
        self._messages, self._size, self._prefetch = messages, size, prefetch
        self._answers: list[float] = []
        self._published: list[float] = []
        self._consumed_s = 0.0
        self.steps = 2 * messages

    def run(self, connection: kombu.Connection) -> Iterator[int]:
        """Ask, publish, consume; yields how far it came. Its queue is gone afterwards."""
        name = f"reliq-bench-{os.urandom(4).hex()}"
        arguments = {"x-expires": _EXPIRES_MS}
        queue = kombu.Queue(name, kombu.Exchange(""), name, queue_arguments=arguments)
        try:
            for _ in range(_ASKED):
                _timed(self._answers, self._inspector.queues)
            yield from self._publish(connection, queue)
            yield from self._consume(connection, queue)
        finally:
            queue(connection.default_channel).delete()

    def _publish(self, connection: kombu.Connection, queue: kombu.Queue) -> Iterator[int]:
        queue(connection.default_channel).declare()
        producer, body = connection.Producer(), b"x" * self._size

        def publish() -> None:
            producer.publish(
                body,
                exchange="",
                routing_key=queue.name,
                content_type="application/octet-stream",
                content_encoding="binary",
            )

        publish()  # whatever is done once is done now
        for _ in range(self._messages):
            _timed(self._published, publish)
            yield 1

    def _consume(self, connection: kombu.Connection, queue: kombu.Queue) -> Iterator[int]:
        taken = 0

        def take(message: Any) -> None:
            nonlocal taken
            message.ack()
            taken += 1

        with connection.channel() as channel:
            channel.basic_qos(0, self._prefetch, False)
            with kombu.Consumer(channel, [queue], on_message=take, auto_declare=False):
                began = time.perf_counter()
                while taken <= self._messages:
                    before = taken
                    connection.drain_events(timeout=_SILENT_S)
                    yield taken - before
                self._consumed_s = time.perf_counter() - began

    @property
    def figures(self) -> Figures:
        """What was measured."""
        return Figures(
            self._messages,
            self._size,
            self._prefetch,
            _percentile(self._answers, 50),
            _percentile(self._answers, 99),
            round(self._messages / sum(self._published), 1),
            _percentile(self._published, 50),
            _percentile(self._published, 99),
            round((self._messages + 1) / self._consumed_s, 1),
        )


@click.command()
@click.option("--messages", type=click.IntRange(10, 1_000_000), default=2000, show_default=True)
@click.option("--size", type=click.IntRange(0, 1_000_000), default=300, show_default=True,
              help="Bytes of each body.")  # fmt: skip
@click.option("--prefetch", type=click.IntRange(1, 10_000), default=64, show_default=True)
@on_brokers
def bench(target: Target, messages: int, size: int, prefetch: int) -> None:
    """Measure the broker from here: answers, publishes and consumes a second, one process.

    In a queue of its own, which is deleted afterwards. It costs the broker some seconds
    of work.

    \b
    Examples:
      reliq bench
      reliq bench --messages 20000 --size 2000 --json
    """

    def measure(inspector: Inspector) -> Sequence[Figures]:
        run = Bench(inspector, messages, size, prefetch)
        with kombu.Connection(inspector.url, transport_options=dict(target.options)) as connection:
            steps = run.run(connection)
            out.progressing(inspector.broker, run.steps, steps, "its queue is deleted")
            return (run.figures,)

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
