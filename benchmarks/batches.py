"""Many tasks with one callback: `reliq.Batch` compared with Celery's chord with results in Redis.

No worker consumes while tasks are published. Then a running worker consumes: prefork with two
processes, with Celery's prefetch and early acks, equal for all peers. The tasks do nothing.
"""

from __future__ import annotations

import json
import os
import resource
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import child
from benchmarks.growth import TINY
from benchmarks.model import Figure, Row
from benchmarks.peers import CHORD, CHORD_OF_OURS, RELIQ
from benchmarks.worker import BACKEND, BROKER, PARKED, begin_consuming, running

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.peers import Broker
    from benchmarks.setting import Setting

_TINY_COUNT = 100
END_WITHIN_S = 1_800.0
WORKER = ("--pool", "prefork", "--concurrency", "2", "--queues", PARKED, "--loglevel", "INFO")


def publish_jobs(broker: Broker, count: int, how: str, backend: str) -> tuple[float, float]:
    """Publish *count* tasks with a callback; return seconds, and this process's growth in MB.

    how: "map" or "delay" for a batch, or "chord", with a result backend.
    """
    os.environ[BROKER] = json.dumps(broker)
    if how == "chord":
        os.environ[BACKEND] = backend
    from benchmarks import celery_app

    # Connections and the imports of the first publish exist before.
    celery_app.job.apply_async((0,), queue="unused")
    before = _peak_mb()
    start = time.perf_counter()
    if how == "chord":
        from celery import chord

        chord(celery_app.job.s(number) for number in range(count))(celery_app.finished.s())
    else:
        import reliq

        with reliq.Batch("benchmark", on_complete=celery_app.finished.s()) as batch:
            if how == "map":
                batch.map(celery_app.job, range(count))
            else:
                for number in range(count):
                    celery_app.job.delay(number)
    took = time.perf_counter() - start
    grown = _peak_mb() - before
    celery_app.app.close()
    return took, grown


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(setting: Setting, key: str, size: int, delayed: bool) -> Mapping[str, float]:
    """Return the times to publish and to the callback, and the memory used."""
    count = _TINY_COUNT if setting.scale < TINY else min(size, setting.largest)
    ours = setting.peer.name == RELIQ
    backend = f"redis://127.0.0.1:{setting.redis.port}/1"
    given = {"broker": setting.broker, "count": count, "backend": backend}
    values = {}
    if delayed and ours:
        values[f"{key}-delay"], _ = child.run(publish_jobs, how="delay", **given)
        setting.server.empty()
    environment = {} if ours else {BACKEND: backend}
    with running(setting.broker, *WORKER, environment=environment) as worker:
        worker.wait_until_ready()
        before = setting.redis.used_memory()
        published, grown = child.run(publish_jobs, how="map" if ours else "chord", **given)
        used = [setting.redis.used_memory()]
        child.run(begin_consuming, broker=setting.broker)
        ran = worker.wait_for_callback(
            END_WITHIN_S, lambda: used.append(setting.redis.used_memory())
        )
    if delayed and not ours:
        values[f"{key}-delay"] = published
    return values | {
        f"{key}-publish": published,
        f"{key}-callback": ran,
        f"{key}-memory": (max(used) - before) / count,
        f"{key}-producer": grown,
    }


def _figure(size: int, delayed: bool, most_rounds: int) -> Figure:
    key, jobs = f"batch-{size}", f"{size:,} jobs"
    rows = [
        Row(f"{key}-publish", f"{jobs}, publish with `Batch.map` or as a chord", "s", digits=2),
        Row(f"{key}-callback", f"{jobs}, first task to callback", "s", digits=1),
        Row(f"{key}-memory", f"{jobs}, peak memory of the server per job", "bytes"),
        Row(f"{key}-producer", f"{jobs}, memory growth of the producer", "MB", digits=1),
    ]
    if delayed:
        rows.insert(1, Row(f"{key}-delay", f"{jobs}, publish with `delay()`", "s", digits=2))
    measured = partial(measure, key=key, size=size, delayed=delayed)
    peers = (RELIQ, CHORD, CHORD_OF_OURS)
    return Figure(key, tuple(rows), measured, peers, most_rounds, warm_up=False)


FIGURES = (_figure(10_000, True, 3), _figure(100_000, False, 1))
