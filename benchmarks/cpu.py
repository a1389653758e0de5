"""Processor time of a Celery worker's main process per task, and its profile.

The time is the system's count for the process, without its children. The profile is taken in a
separate run, because profiling slows the process.
"""

from __future__ import annotations

import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import child
from benchmarks.celery_tasks import PACES, RUN_WITHIN_S, TASKS
from benchmarks.model import Figure, Row
from benchmarks.peers import CLASSIC, KOMBU, RELIQ
from benchmarks.worker import PROFILE, publish_tasks, running

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.setting import Setting

PROFILED_POOL = "prefork"


def _run(setting: Setting, pool: str, environment: Mapping[str, str]) -> float:
    """Run no-op tasks in a running worker; return the main process's seconds per task."""
    count = setting.size(round(TASKS * PACES.get(setting.peer.name, 1.0)), least=50)
    arguments = ("--pool", pool, "--loglevel", "INFO")
    with running(setting.broker, *arguments, environment=environment) as worker:
        worker.wait_until_ready()
        # The cost of a start continues after "ready", with mingle and the first tasks.
        child.run(publish_tasks, broker=setting.broker, count=count // 10)
        worker.wait_for_tasks(count // 10, RUN_WITHIN_S)
        before = worker.cpu_seconds()
        child.run(publish_tasks, broker=setting.broker, count=count)
        worker.wait_for_tasks(count + count // 10, RUN_WITHIN_S)
        used = worker.cpu_seconds() - before
    return used / count


def measure(setting: Setting, key: str, pool: str) -> Mapping[str, float]:
    """Return microseconds of processor time per task."""
    return {key: 1e6 * _run(setting, pool, {})}


def profile(setting: Setting) -> str:
    """Return pyinstrument's text about the main process of a prefork worker; raise without it."""
    if find_spec("pyinstrument") is None:
        raise AssertionError("pyinstrument is not installed: pip install 'kombu-reliq[benchmark]'")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "profile"
        _run(setting, PROFILED_POOL, {PROFILE: str(path)})
        return path.read_text(encoding="utf-8").replace(f"{child.ROOT}/", "")


def _figure(pool: str) -> Figure:
    key = f"cpu-{pool}"
    row = Row(key, f"CPU of the main process per task, {pool}", "µs")
    measured = partial(measure, key=key, pool=pool)
    return Figure(key, (row,), measured, (RELIQ, KOMBU, CLASSIC), 1, warm_up=False)


FIGURES = tuple(_figure(pool) for pool in ("prefork", "solo", "threads"))
