"""Tasks whose effect must not be repeated: here a line "charged" in the journal."""

from __future__ import annotations

import time

import reliq
from tests.integration.apps.tasks import app, journal


@app.task(bind=True, name="charge", acks_late=True, max_retries=3)
def charge(self, seconds=0.0, fail=0):
    """Charge unless already done; first fail *fail* times."""
    journal.write("asked", self.request.id)
    with reliq.once(self.request, ttl=60, lease=2.0) as first:
        if first:
            journal.write("entered", self.request.id)
            if self.request.retries < fail:
                raise self.retry(countdown=0)
            if len(journal.entries("entered", self.request.id)) == 1:
                time.sleep(seconds)
            journal.write("charged", self.request.id)
    return first
