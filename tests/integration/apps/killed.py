"""An app whose processes are killed at points, and who looks for what they left is quick.

RELIQ_TEST_KILL are points (:mod:`.killing`), RELIQ_TEST_KILLED the folder for what they leave. ``python -m
tests.integration.apps.killed PRODUCERS`` publishes batches, each in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from kombu import Queue

from reliq.batches import Batch
from reliq.consumer import batch_passes, lost_jobs
from reliq.errors import QueueFull
from tests.integration.apps.jobs import app
from tests.integration.apps.killing import Killer, Point

__all__ = ["app"]

JOBS = 2
batch_passes._EVERY_S = 0.2
batch_passes._AGAIN_MS = 100
batch_passes._SWEPT_EVERY_S = 0.2
lost_jobs.LostJobs.sweep.__defaults__ = (1500,)
app.amqp.queues.add(
    Queue("full", max_length=1, queue_arguments={"x-overflow": "reject-publish"}, durable=True)
)


class _Left(Exception):
    """Leaves a batch open."""


def arm(points: list[list[Any]]) -> None:
    """Let this process, and those that it forks, be killed at *points*."""
    url, directory = os.environ["RELIQ_TEST_BROKER"], Path(os.environ["RELIQ_TEST_KILLED"])
    Killer([Point(*point) for point in points], directory, url).arm()


arm(json.loads(os.environ.get("RELIQ_TEST_KILL", "[]")))


def batch(name: str, **options: Any) -> Batch:
    """Return the batch of that id, with all callbacks."""
    callbacks = {
        f"on_{what}": app.signature("report", (what,)).set(queue="callbacks")
        for what in ("success", "complete", "failure")
    }
    return Batch(
        "killed",
        url=os.environ["RELIQ_TEST_BROKER"],
        transport_options=app.conf.broker_transport_options,
        id=name,
        **{"seal_timeout": 2, **callbacks, **options},
    )


def publish(name: str, task: str, how: str, scenario: str = "", *, jobs: int = JOBS) -> None:
    """Publish jobs to the queue of that name, and do with their batch what *scenario* says."""
    if scenario == "cancelled":
        batch(name).cancel()
        return
    outer = batch(name, **({"batch_ttl": 0.001} if scenario == "forgotten" else {}))
    with suppress(_Left), outer:
        if scenario in {"nested", "open nested"}:
            with batch(f"{name}-inner", parent=outer) as inner:
                for _ in range(jobs):
                    app.send_task(task, (how,), queue=name)
            inner.close()
            return
        if scenario == "map":
            outer.map(app.tasks[task], [how] * jobs, queue=name)
            return
        for _ in range(jobs):
            with suppress(QueueFull):
                app.send_task(task, (how,), queue=name)
        if scenario == "left":
            raise _Left


def produce(points: list[list[Any]], arguments: list[Any]) -> int:
    """Publish in a child of this process; return how it ended."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        arm(points)
        publish(*arguments)
        code = 0
    finally:
        sys.stdout.flush()
        sys.excepthook(*sys.exc_info()) if code else None
        os._exit(code)


if __name__ == "__main__":
    print(json.dumps([produce(*one) for one in json.loads(sys.argv[1])]), flush=True)
