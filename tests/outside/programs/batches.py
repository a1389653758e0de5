"""A task of celery-batches that receives published tasks ten at a time."""

from __future__ import annotations

import json
import os

from celery import Celery
from celery_batches import Batches

from tests.support.journal import FINISHED, STARTED, Journal

journal = Journal(os.environ["RELIQ_TEST_JOURNAL"])
app = Celery("batches", broker=os.environ["RELIQ_TEST_BROKER"])
app.conf.update(json.loads(os.environ["RELIQ_TEST_CONFIG"]))


@app.task(base=Batches, flush_every=10, flush_interval=30, name="gather")
def gather(requests):
    """Record the size of the batch and the ids in it."""
    journal.write(STARTED, str(len(requests)))
    for request in requests:
        journal.write(FINISHED, request.id)
