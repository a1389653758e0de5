"""Celery no-op tasks end to end: published first, then run by one real worker.

Timed inside the worker, from the first task that ran to the last: start-up does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import child
from benchmarks.model import Figure, Row, Target
from benchmarks.worker import publish_tasks, running

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.setting import Setting

RUN_WITHIN_S = 300.0


def measure(setting: Setting, key: str, pool: str) -> Mapping[str, float]:
    """Return tasks run a second by a worker with this pool and Celery's default concurrency."""
    count = setting.size(6_000)
    child.run(publish_tasks, url=setting.url, count=count)
    with running(setting.url, "--pool", pool) as worker:
        ran = worker.wait_for_tasks(count, RUN_WITHIN_S)
    return {key: (count - 1) / ran.seconds}


def _figure(pool: str, target: float) -> Figure:
    key = f"celery-{pool}"
    row = Row(key, f"Celery no-op tasks, {pool}", "tasks/s", Target("ratio_at_least", target))
    return Figure(key, (row,), lambda setting: measure(setting, key, pool))


FIGURES = (_figure("solo", 3.5), _figure("prefork", 1.5), _figure("threads", 2))
