"""The end of a task, by its return value or exception: the worker's report to the batch."""

from __future__ import annotations

import billiard.einfo  # noqa: F401 - as a worker has
import pytest
from celery.exceptions import Ignore, Reject

from reliq.integrations.job_runs import _ignored
from reliq.integrations.outcomes import DROPPED, REPLACED, outcome_of


@pytest.mark.parametrize(
    ("error", "acked", "state"),
    [
        (Ignore(), False, "succeeded"),
        (_ignored(DROPPED)[1].exception, False, "cancelled"),
        (_ignored(REPLACED)[1].exception, False, None),
        (Reject("later", requeue=True), False, None),
        (Reject("later", requeue=True), True, "error"),
        (Reject("never", requeue=False), False, "error"),
    ],
)
def test_what_a_task_raises(error, acked, state):
    """An exception decides the state of a job; a dropped job reports its own cancellation.

    Its batch may have lost the record of that cancellation.
    """
    found = outcome_of(error, acked=acked)
    assert state == (found and found.state)
