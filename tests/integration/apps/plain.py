"""An application before its migration: without a broker or an import of reliq."""

from __future__ import annotations

import os

from celery import Celery

from tests.support.journal import FINISHED, Journal

app = Celery("plain")
journal = Journal(os.environ["RELIQ_TEST_JOURNAL"])


@app.task(bind=True, name="plain.note")
def note(self):
    """Record the run."""
    journal.write(FINISHED, self.request.id)
