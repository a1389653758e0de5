"""The tasks of `tasks.py` on a queue with limits, and one that ends in each way."""

from __future__ import annotations

import json
import os
import signal
import time

from celery.exceptions import Ignore, Reject
from kombu import Queue

from tests.integration.apps.tasks import app, journal
from tests.support.journal import FINISHED, STARTED

app.conf.task_queues = [
    Queue(
        "celery", routing_key="celery", queue_arguments=json.loads(os.environ["RELIQ_TEST_LIMITS"])
    )
]


@app.task(bind=True, name="end_as", max_retries=1, time_limit=1)
def end_as(self, how):
    """End in the way that *how* names."""
    journal.write(STARTED, self.request.id)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "time limit":
        time.sleep(60)
    if how == "retry" and not self.request.retries:
        raise self.retry(countdown=0)
    errors = {"raise": ValueError, "ignore": Ignore, "reject": Reject}
    if how in errors:
        raise errors[how]("as told")
    if how == "requeue" and journal.runs(self.request.id) == 1:
        raise Reject("as told", requeue=True)
    journal.write(FINISHED, self.request.id)
