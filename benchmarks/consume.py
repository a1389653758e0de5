"""Consuming: a callback that acks each message, from queues that were filled before."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu import Consumer

from benchmarks import child, crowd, raw
from benchmarks.fill import fill
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import BARE, CLASSIC, CLIENT, KOMBU, QUORUM, RELIQ, connect, queue_of
from benchmarks.publish import QUEUE, SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kombu import Message

    from benchmarks.peers import Broker
    from benchmarks.setting import Setting

NEXT_WITHIN_S = 30.0
NOTHING_LEFT_S = 1.0
COUNT = 10_000


def consume_loop(
    broker: Broker,
    prefetch: int,
    warm_up: int,
    count: int,
    names: Sequence[str] = (QUEUE,),
) -> float:
    """Consume and ack `warm_up` (1 or more), then `count`; return the seconds of the latter.

    The connection is closed within the measured time, so that no ack is in transit. The time begins
    in the callback, because py-amqp delivers messages while it still subscribes to the next queue.
    """
    connection = connect(broker)
    channel = connection.default_channel
    seen, start = 0, 0.0

    def received(_body: Any, message: Message) -> None:
        nonlocal seen, start
        message.ack()
        seen += 1
        if seen == warm_up:
            start = time.perf_counter()

    queues = [queue_of(broker, name) for name in names]
    consumer = Consumer(channel, queues, callbacks=[received], prefetch_count=prefetch or None)
    consumer.consume()
    while seen < warm_up + count:
        connection.drain_events(timeout=NEXT_WITHIN_S)
    connection.close()
    return time.perf_counter() - start


def consume_all(
    broker: Broker, prefetch: int, ready: Callable[[], None] = lambda: None
) -> tuple[int, int, int]:
    """Consume beside others until no message comes; return count, first and last time (ns)."""
    connection = connect(broker)
    times: list[int] = []

    def received(_body: Any, message: Message) -> None:
        message.ack()
        times.append(time.monotonic_ns())

    options = {"callbacks": [received], "prefetch_count": prefetch}
    consumer = Consumer(connection.default_channel, [queue_of(broker, QUEUE)], **options)
    ready()
    consumer.consume()
    try:
        while True:
            connection.drain_events(timeout=NOTHING_LEFT_S)
    except TimeoutError:
        pass
    connection.close()
    return len(times), min(times, default=0), max(times, default=0)


def rate_of_crowd(broker: Broker, consumers: int, prefetch: int, count: int) -> float:
    """Return the total rate of *consumers* processes that consume and ack together.

    From the first message of any process to the last of any. Raises unless each message came once.
    """
    done = child.run(
        crowd.together,
        called=crowd.named(consume_all),
        processes=consumers,
        arguments={"broker": broker, "prefetch": prefetch},
    )
    taken = sum(seen for seen, _, _ in done)
    if taken != count:
        raise AssertionError(f"{taken} messages were consumed, {count} were published")
    working = [times for times in done if times[0]]
    first, last = min(t[1] for t in working), max(t[2] for t in working)
    return float(count / max(1e-9, (last - first) / 1e9))


def names_of(queues: int) -> list[str]:
    """Return the names of *queues* queues."""
    return [QUEUE] if queues == 1 else [f"{QUEUE}-{number}" for number in range(queues)]


def measure(
    setting: Setting,
    key: str,
    prefetch: int,
    queues: int = 1,
    consumers: int = 1,
    share: float = 1.0,
    size: int = SIZE,
) -> Mapping[str, float]:
    """Return messages consumed and acked per second with this prefetch count; 0: no limit."""
    count = setting.paced(round(COUNT * share))
    if setting.peer.scheme == "raw":
        return {key: raw.consume(setting, prefetch, count, size)}
    if consumers > 1:
        fill(setting, count, size=size)
        return {key: rate_of_crowd(setting.broker, consumers, prefetch, count)}
    names, warm_up = names_of(queues), max(queues, count // 20)
    fill(setting, warm_up + count, names, size)
    seconds = child.run(
        consume_loop,
        broker=setting.broker,
        prefetch=prefetch,
        warm_up=warm_up,
        count=count,
        names=names,
    )
    check_all_acked(setting, names)
    return {key: count / seconds}


def check_all_acked(setting: Setting, names: Sequence[str]) -> None:
    """Raise if a message is still unacked; only Redis shows that."""
    if not setting.peer.place.startswith(("redis", "cluster")):
        return
    for name in names:
        unacked = setting.node_of(name).client.zcard(setting.peer.unacked_index(name))
        if unacked != 0:
            raise AssertionError(f"{unacked} messages were not acked within the measured time")


def _figure(
    key: str, title: str, targets: tuple[Target, ...] = (), core: bool = False, **how: Any
) -> Figure:
    row = Row(f"consume-{key}", f"consume and ack, {title}", "messages/s", targets)
    peers = (RELIQ, KOMBU, CLASSIC, QUORUM) + ((BARE, CLIENT) if key in {"4", "64"} else ())
    measured = partial(measure, key=row.key, **how)
    return Figure(row.key, (row,), measured, peers, None if core else 2, warm_up=core, core=core)


def _beside_rabbitmq(*more: Target) -> tuple[Target, ...]:
    both = (CLASSIC, QUORUM)
    return (*more, *(Target("ratio_at_least", 4, against=peer) for peer in both))


_AT_64 = _beside_rabbitmq(Target("ratio_at_least", 40))
_AT_4 = _beside_rabbitmq(Target("ratio_at_least", 15))
FIGURES = (
    _figure("64", "prefetch 64", _AT_64, core=True, prefetch=64),
    _figure("4", "prefetch 4", _AT_4, core=True, prefetch=4, share=0.5),
    _figure("1", "prefetch 1", prefetch=1, share=0.3),
    _figure("16", "prefetch 16", prefetch=16),
    _figure("0", "unlimited prefetch", prefetch=0),
    _figure("5-queues", "prefetch 64, 5 queues", prefetch=64, queues=5),
    _figure("50-queues", "prefetch 64, 50 queues", prefetch=64, queues=50),
    _figure("4-consumers", "prefetch 64, 4 consumers", prefetch=64, consumers=4),
)
