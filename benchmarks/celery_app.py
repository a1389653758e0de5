"""The Celery application that is measured: one task that does nothing, Celery's defaults."""

from __future__ import annotations

import os

from celery import Celery

from benchmarks import record
from benchmarks.worker import BROKER

app = Celery("benchmarks", broker=os.environ[BROKER])
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,  # the default, said aloud: Celery warns otherwise
)


@app.task
def noop() -> None:
    """Do nothing but be counted."""
    record.mark()
