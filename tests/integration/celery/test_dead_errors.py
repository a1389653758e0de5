"""A dead letter of a Celery task contains the exception of the task."""

from __future__ import annotations

import pytest

from reliq.admin import Inspector
from tests.support.waiting import wait_until
from tests.support.workers import POOLS

APP = "tests.integration.apps.jobs"


@pytest.mark.parametrize("pool", POOLS)
def test_what_the_task_raised(site, pool):
    """The dead letters of a failed, unacked task and of a rejected one contain the exception."""
    site.worker(app=APP, pool=pool, concurrency=1)
    site.send("end_late_unacked", "error")
    site.send("end_late", "reject")
    with Inspector(site.broker, transport_options=site.transport_options) as inspector:
        wait_until(lambda: inspector.status("celery").dead == 2, what="two dead letters")
        found = {letter.reason: set() for letter in inspector.dead_letters("celery")}
        for letter in inspector.dead_letters("celery"):
            found[letter.reason].add(letter.error)
    assert {"rejected": {"ValueError: as told", "Reject: not this one"}} == found
