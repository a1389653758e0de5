"""An application as a user has it before the one line changes: no broker, no import of ours."""

from __future__ import annotations

import os

from celery import Celery

from tests.support.journal import FINISHED, Journal

app = Celery("plain")
journal = Journal(os.environ["RELIQ_TEST_JOURNAL"])


@app.task(bind=True, name="plain.note")
def note(self):
    """Say that it ran."""
    journal.write(FINISHED, self.request.id)
