"""Messages that carry their due time, and the programs that send and receive them.

The clock is the machine's monotonic one, which all processes share. The schedule of due times does
not wait for the broker: a message that is late because the previous one was late counts as late.
"""

from __future__ import annotations

import struct
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from kombu import Consumer, Producer

from benchmarks import child
from benchmarks.peers import connect, queue_of
from benchmarks.publish import CONTENT

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

    from kombu import Message

    from benchmarks.peers import Broker

STAMP = struct.Struct("=q")
PADDING = bytes(92)
LAST = -1
NEXT_WITHIN_S = 60.0
PREFETCH = 64


def send(broker: Broker, name: str, rate: float, count: int) -> None:
    """Publish *count* stamped messages at *rate* per second; 0: as fast as possible.

    Prints a line at the begin.
    """
    with connect(broker) as connection:
        channel = connection.default_channel
        queue_of(broker, name)(channel).declare()
        producer = Producer(channel, routing_key=name)
        print("ready", flush=True)
        due = time.monotonic_ns()
        for _ in range(count):
            if rate:
                due += int(1e9 / rate)
                time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
            else:
                due = time.monotonic_ns()
            producer.publish(STAMP.pack(due) + PADDING, **CONTENT)
        producer.publish(STAMP.pack(LAST) + PADDING, **CONTENT)


def take(broker: Broker, name: str) -> list[tuple[int, int]]:
    """Consume and ack until the last message; return due and arrival time of each, in ns."""
    connection = connect(broker)
    taken: list[tuple[int, int]] = []
    ended = False

    def received(message: Message) -> None:
        nonlocal ended
        now = time.monotonic_ns()
        (due,) = STAMP.unpack_from(message.body)
        message.ack()
        if due == LAST:
            ended = True
        else:
            taken.append((due, now))

    options: dict[str, Any] = {"on_message": received, "prefetch_count": PREFETCH}
    with Consumer(connection.default_channel, [queue_of(broker, name)], **options):
        print("ready", flush=True)
        while not ended:
            connection.drain_events(timeout=NEXT_WITHIN_S)
    connection.close()
    return taken


def start_taking(broker: Broker, name: str) -> subprocess.Popen[str]:
    """Start a consumer; return its process when it consumes."""
    process = child.start(take, broker=broker, name=name)
    child.wait_for_line(process)
    return process


def exchange(broker: Broker, name: str, rate: float, count: int) -> list[tuple[int, int]]:
    """Send and receive *count* messages at *rate*; return due and arrival time of each, in ns."""
    taker = start_taking(broker, name)
    try:
        child.run(send, broker=broker, name=name, rate=rate, count=count)
        return [(due, came) for due, came in child.result(taker)]
    finally:
        child.stop(taker)


def throughput(taken: Sequence[tuple[int, int]]) -> float:
    """Return messages per second from the first due time to the last arrival."""
    return len(taken) / (max(came for _, came in taken) - min(due for due, _ in taken)) * 1e9


def late_ms(taken: Sequence[tuple[int, int]]) -> list[float]:
    """Return the delay of each message in ms, sorted."""
    return sorted((came - due) / 1e6 for due, came in taken)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the sorted values do not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]


def quantiles(taken: Sequence[tuple[int, int]], key: str) -> Mapping[str, float]:
    """Return median, p99 and p99.9 of the latency in ms, without the first twentieth."""
    late = late_ms(taken[len(taken) // 20 :])
    return {
        f"{key}-p50": median(late),
        f"{key}-p99": quantile(late, 0.99),
        f"{key}-p999": quantile(late, 0.999),
    }
