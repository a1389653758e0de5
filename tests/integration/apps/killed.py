"""An app whose processes are killed at given points, with short intervals between passes.

RELIQ_TEST_KILL lists the points (:mod:`.killing`); RELIQ_TEST_KILLED is the folder for their
marks. ``python -m tests.integration.apps.killed PRODUCERS`` publishes batches, each in its own
process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from kombu import Queue

from reliq.batches import lost_jobs
from reliq.consumer import batch_passes
from reliq.transports import failback_rounds
from tests.integration.apps.jobs import app
from tests.integration.apps.killed_batches import Publisher
from tests.integration.apps.killing import Killer, Point

__all__ = ["app"]

batch_passes._EVERY_S = 0.2
batch_passes._AGAIN_MS = 100
batch_passes._RESTS_MS = 100
batch_passes._SWEPT_EVERY_S = 0.2
# Longer than a restart of a broker on a busy machine.
lost_jobs.MISSING_MS = 10_000
failback_rounds._SWEPT_EVERY_S = 1.0
# Longer than an outage of a broker.
app.conf.task_publish_retry_policy = {"max_retries": 100, "interval_max": 0.2}
for _name in ("producer-refused-withdrawing", "producer-refused-withdrawn"):
    app.amqp.queues.add(
        Queue(_name, max_length=1, queue_arguments={"x-overflow": "reject-publish"})
    )


def arm(points: list[list[Any]]) -> None:
    """Let this process, and its forked children, be killed at *points*."""
    url, directory = os.environ["RELIQ_TEST_BROKER"], Path(os.environ["RELIQ_TEST_KILLED"])
    Killer([Point(*point) for point in points], directory, url).arm()


if "RELIQ_TEST_KILL" in os.environ:
    arm(json.loads(os.environ["RELIQ_TEST_KILL"]))


def produce(points: list[list[Any]], arguments: list[Any]) -> int:
    """Publish in a child of this process; return its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        arm(points)
        Publisher(app, os.environ["RELIQ_TEST_BROKER"]).publish(*arguments)
        code = 0
    finally:
        sys.stdout.flush()
        sys.excepthook(*sys.exc_info()) if code else None
        os._exit(code)


if __name__ == "__main__":
    print(json.dumps([produce(*one) for one in json.loads(sys.argv[1])]), flush=True)
