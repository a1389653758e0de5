"""Celery tasks end to end: published first, then run by real workers.

Timed inside the workers, from the first run to the last: start-up does not count.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import child
from benchmarks.model import Figure, Row, Target
from benchmarks.peers import CLASSIC, KOMBU, RELIQ
from benchmarks.worker import ACKS_LATE, PARKED, begin_consuming, publish_tasks, running

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.setting import Setting

RUN_WITHIN_S = 300.0
TASKS = 6_000
# Celery's workers differ less from each other than the bare transports do.
PACES = {RELIQ: 1.0, KOMBU: 0.3, CLASSIC: 0.5}


def measure(
    setting: Setting, key: str, pool: str, task: str = "noop", late: bool = False, workers: int = 1
) -> Mapping[str, float]:
    """Return tasks per second of workers with this pool and Celery's default concurrency."""
    count = setting.size(round(TASKS * PACES.get(setting.peer.name, 1.0)))
    environment = {ACKS_LATE: "1"} if late else {}
    broker = setting.broker
    child.run(publish_tasks, broker=broker, count=count, task=task)
    with ExitStack() as stack:
        if workers == 1:
            worker = stack.enter_context(running(broker, "--pool", pool, environment=environment))
        else:
            # Start all of them before any reserves a task: the second must not find an empty queue.
            records = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for number in range(workers):
                options = ("--queues", PARKED, "--hostname", f"w{number}@%h", "--loglevel", "INFO")
                worker = stack.enter_context(
                    running(
                        broker, "--pool", pool, *options, records=records, environment=environment
                    )
                )
                worker.wait_until_ready()
            child.run(begin_consuming, broker=broker)
        ran = worker.wait_for_tasks(count, RUN_WITHIN_S)
    return {key: (count - 1) / ran.seconds}


def _figure(
    key: str,
    title: str,
    pool: str,
    target: float | None = None,
    task: str = "noop",
    late: bool = False,
    workers: int = 1,
) -> Figure:
    key = f"celery-{key}"
    targets = () if target is None else (Target("ratio_at_least", target),)
    row = Row(key, f"Celery {title}", "tasks/s", targets)
    measured = partial(measure, key=key, pool=pool, task=task, late=late, workers=workers)
    core = target is not None
    peers = (RELIQ, KOMBU, CLASSIC) if core else (RELIQ, KOMBU)
    return Figure(key, (row,), measured, peers, None if core else 1, warm_up=False, core=core)


FIGURES = (
    _figure("solo", "no-op tasks, solo", "solo", 4),
    _figure("prefork", "no-op tasks, prefork", "prefork", 2),
    _figure("threads", "no-op tasks, threads", "threads", 2.5),
    _figure("gevent", "no-op tasks, gevent", "gevent"),
    *(
        _figure(f"{pool}-late", f"no-op tasks, {pool}, acks late", pool, late=True)
        for pool in ("solo", "prefork", "threads", "gevent")
    ),
    *(
        _figure(f"{pool}-1ms", f"1 ms tasks, {pool}", pool, task="millisecond")
        for pool in ("solo", "prefork", "threads", "gevent")
    ),
    *(
        _figure(f"{pool}-2-workers", f"no-op tasks, 2 {pool} workers", pool, workers=2)
        for pool in ("solo", "prefork")
    ),
)
