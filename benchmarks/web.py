"""Publishing as in web applications: `task.delay()` from many threads, or without a pool.

With `broker_pool_limit = 0` (or None), Celery opens and closes a connection for each task.
This is often recommended for networks that silently cut connections.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from itertools import count as count_up
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from celery import Celery

from benchmarks import child
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import CLASSIC, EMBEDDED, KOMBU, RELIQ, connect, is_reliq, queue_of
from benchmarks.publish import wait_until_stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.peers import Broker
    from benchmarks.setting import Setting

QUEUE = "celery"
SECONDS = 2.0
MANY = 16


def delay_loop(
    broker: Broker, seconds: float, threads: int, pooled: bool, many: bool = False
) -> tuple[int, float]:
    """Call `delay()` for *seconds* in each thread, after a warm-up of a tenth of that.

    With `many`, and reliq, uses `publish_many`. Returns count and seconds. Raises unless all
    published messages are stored at the end.
    """
    if is_reliq(broker["url"]):
        import reliq  # noqa: F401  # registers the schemes
    app = Celery("web", broker=broker["url"], set_as_current=False)
    app.conf.update(broker_transport_options=broker["options"], task_ignore_result=True)
    if not pooled:
        app.conf.broker_pool_limit = 0
    task = app.task(name="web.nothing")(_nothing)
    app.finalize()  # before the threads: Celery otherwise creates a task at its first use in one
    publish = _publish_many if many and is_reliq(broker["url"]) else _publish
    before, _ = publish(task, seconds / 10, threads)
    count, took = publish(task, seconds, threads)
    app.close()
    with connect(broker) as connection:
        wait_until_stored(queue_of(broker, QUEUE)(connection.default_channel), before + count)
    return count, took


def _publish(task: Any, seconds: float, threads: int) -> tuple[int, float]:
    """Publish in each thread, at least once; return count and seconds."""
    counts = [0] * threads
    failed: list[BaseException] = []
    start = time.perf_counter()

    def publish(number: int) -> None:
        try:
            while not counts[number] or time.perf_counter() < start + seconds:
                task.delay(number)
                counts[number] += 1
        except Exception as error:  # noqa: BLE001  # raised below, as a thread cannot
            failed.append(error)

    crowd = [threading.Thread(target=publish, args=(number,)) for number in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    if failed:
        raise failed[0]
    return sum(counts), time.perf_counter() - start


def _publish_many(task: Any, seconds: float, threads: int) -> tuple[int, float]:
    """Publish with one call, in one thread; return count and seconds."""
    import reliq

    del threads
    start = time.perf_counter()
    until_over = takewhile(lambda _: time.perf_counter() < start + seconds, count_up())
    return reliq.publish_many(task, until_over), time.perf_counter() - start


def _nothing(number: int) -> None:
    """Do nothing: the task never runs."""


def measure(
    setting: Setting, key: str, threads: int, pooled: bool = True, many: bool = False
) -> Mapping[str, float]:
    """Return tasks per second that one process publishes with *threads* threads."""
    seconds = setting.seconds(SECONDS)
    arguments = {"seconds": seconds, "threads": threads, "pooled": pooled, "many": many}
    count, took = child.run(delay_loop, broker=setting.broker, **arguments)
    return {key: count / took}


def _figure(
    key: str,
    title: str,
    peers: tuple[str, ...],
    threads: int,
    target: float | None = None,
    **how: Any,
) -> Figure:
    measured = partial(measure, key=key, threads=threads, **how)
    targets = () if target is None else (Target("ratio_at_least", target),)
    return Figure(key, (Row(key, title, "tasks/s", targets),), measured, peers, warm_up=False)


_PEERS = (RELIQ, KOMBU, CLASSIC)
FIGURES = (
    _figure("web-delay", "task.delay(), one thread", _PEERS, 1),
    _figure("web-delay-threads", f"task.delay(), {MANY} threads", _PEERS, MANY),
    _figure("web-delay-unpooled", "task.delay(), broker_pool_limit=0", _PEERS, 1, pooled=False),
    _figure(
        "web-many",
        "reliq.publish_many(), others: a loop of task.delay()",
        _PEERS,
        1,
        target=10,
        many=True,
    ),
)
WITHOUT_A_SERVER = (
    _figure("embedded-delay", "embedded broker, task.delay(), one thread", (EMBEDDED, KOMBU), 1),
    _figure(
        "embedded-delay-threads",
        f"embedded broker, task.delay(), {MANY} threads",
        (EMBEDDED, KOMBU),
        MANY,
    ),
)
