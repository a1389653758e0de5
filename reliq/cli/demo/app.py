"""The Celery application of the demo, for its workers and its publisher.

``python -m celery -A reliq.cli.demo.app worker`` is a worker, and ``python -m
reliq.cli.demo.app`` publishes. A task takes some milliseconds, so that a kill
interrupts running tasks. It records its start and its end.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Celery
from celery.signals import task_received, worker_ready
from kombu import entity

from .record import (
    FINISHED,
    READY,
    RECEIVED,
    STARTED,
    Settings,
    hold_file,
    lasts_ms,
    write,
)

SETTINGS = Settings.from_environment()
HOLD = hold_file(SETTINGS.record)
Queue: Any = entity.Queue  # Kombu is untyped
Exchange: Any = entity.Exchange


def _record(kind: str, task: int = -1) -> None:
    write(SETTINGS.record, kind, SETTINGS.process, task)


def _run(number: int) -> None:
    _record(STARTED, number)
    time.sleep(lasts_ms(number) / 1000)
    while HOLD.exists():
        time.sleep(0.01)
    _record(FINISHED, number)


def _received(request: Any, **_: Any) -> None:
    _record(RECEIVED, int(request.id.rpartition("-")[2]))


app = Celery("reliq-demo")
app.conf.update(
    broker_url=SETTINGS.broker_url,
    broker_transport_options=dict(SETTINGS.transport_options),
    broker_connection_retry_on_startup=True,
    # With the anonymous exchange, the only object to delete from a user's broker is one queue.
    task_queues=[Queue(SETTINGS.queue, Exchange(""), routing_key=SETTINGS.queue)],
    task_default_queue=SETTINGS.queue,
    task_default_exchange="",
    task_default_routing_key=SETTINGS.queue,
    task_acks_late=True,
    task_ignore_result=True,
    worker_enable_remote_control=False,
)
task = app.task(_run, name="reliq.demo.task")
worker_ready.connect(lambda **_: _record(READY), weak=False)
task_received.connect(_received, weak=False)


def publish() -> None:
    """Publish the demo's tasks over one connection; the broker confirms each."""
    with app.connection_for_write() as connection, connection.Producer() as producer:
        for number in range(SETTINGS.first, SETTINGS.first + SETTINGS.tasks):
            name = f"{SETTINGS.queue}-{number}"
            task.apply_async((number,), task_id=name, producer=producer)
    app.close()


if __name__ == "__main__":
    publish()
