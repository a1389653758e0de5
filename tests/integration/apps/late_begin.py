"""The app of jobs, whose children report the begin of a job only after the test allows it."""

from __future__ import annotations

import time

from reliq.integrations import job_runs
from tests.integration.apps.jobs import app
from tests.integration.apps.tasks import journal

__all__ = ["app"]

_begun = job_runs._begun


def _begun_when_told(running):
    while not journal.entries("told"):
        time.sleep(0.05)
    return _begun(running)


job_runs._begun = _begun_when_told
