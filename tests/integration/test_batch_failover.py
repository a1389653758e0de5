"""Batches where there are two brokers: each is at one of them, and so are its jobs."""

from __future__ import annotations

import pytest

from reliq.batches import Batch
from tests.integration.test_celery_failover import brokers  # noqa: F401 - a fixture
from tests.support.waiting import wait_until

APP = "tests.integration.apps.jobs"
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_job_asks_the_broker_that_its_message_is_from(brokers, pool):  # noqa: F811
    """Also where the process that runs it has asked the other one before, which still answers."""
    site = brokers.site
    worker = site.worker(app=APP, pool=pool, concurrency=1)
    brokers.a.kill()
    with Batch("at B", app=site.app) as away:
        site.send("end_late", "succeed")
    assert 1 == away.wait(40).counts["succeeded"]
    away.close()
    brokers.a.start()
    wait_until(lambda: "answers again" in worker.log(), timeout_s=20, what=worker.tail)
    before = brokers.counts(brokers.a)
    wait_until(
        lambda: brokers.send(1, "end_late", "succeed") and brokers.counts(brokers.a) != before
    )
    wait_until(lambda: brokers.counts(brokers.a) == {}, timeout_s=40, what=worker.tail)
    with Batch("at A", app=site.app) as home:
        job = site.send("end_late", "succeed", countdown=1).id
        home.cancel()
    assert 1 == home.wait(20).counts["cancelled"]
    home.close()
    assert 0 == site.journal.runs(job)
