"""The measured Celery application: tasks that do almost nothing, with Celery's defaults."""

from __future__ import annotations

import json
import os
import time

from celery import Celery, signals

from benchmarks import record
from benchmarks.worker import ACKS_LATE, BACKEND, BROKER, PROFILE

broker = json.loads(os.environ[BROKER])
app = Celery("benchmarks", broker=broker["url"])
app.conf.update(
    broker_transport_options=broker["options"],
    task_ignore_result=BACKEND not in os.environ,
    result_backend=os.environ.get(BACKEND),
    task_acks_late=ACKS_LATE in os.environ,
    broker_connection_retry_on_startup=True,  # the default, set explicitly to avoid a warning
)


@app.task  # type: ignore[untyped-decorator]
def noop() -> None:
    """Count the run."""
    record.mark()


@app.task  # type: ignore[untyped-decorator]
def millisecond() -> None:
    """Wait for a millisecond, like a fast call of another service, and count the run."""
    time.sleep(0.001)
    record.mark()


@app.task  # type: ignore[untyped-decorator]
def job(number: int) -> None:
    """Count the run, as one of many that a callback waits for."""
    del number
    record.mark()


@app.task  # type: ignore[untyped-decorator]
def finished(*_: object) -> None:
    """Record that all are done."""
    record.mark_finished()


if PROFILE in os.environ:
    from pyinstrument import Profiler

    profiler = Profiler(async_mode="disabled")

    @signals.worker_ready.connect  # type: ignore[untyped-decorator]
    def _start(**_: object) -> None:
        profiler.start()

    @signals.worker_shutting_down.connect  # type: ignore[untyped-decorator]
    def _stop(**_: object) -> None:
        profiler.stop()
        with open(os.environ[PROFILE], "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(profiler.output_text(show_all=False))
