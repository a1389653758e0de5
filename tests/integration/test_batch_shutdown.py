"""A worker that stops while its jobs run is not taken for one that died."""

from __future__ import annotations

import pytest

from reliq.batches import Batch
from reliq.consumer.lost_jobs import LostJobs
from tests.support.waiting import stays_true, wait_until

APP = "tests.integration.apps.jobs"
LONGER_THAN_A_RECORD_S = 6
"""In the register one lasts four seconds at these sites."""
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_the_jobs_of_a_warm_shutdown_are_not_lost(site, pool):
    """However long it takes, also of those that were acknowledged when they began."""
    worker = site.worker(app=APP, pool=pool, concurrency=2)
    with Batch("test", url=site.broker, transport_options=site.transport_options) as batch:
        site.send("end_early", "until told")
    store = batch._connected()

    def working():
        found = [job for part in store.batches.jobs(batch.id) for job in part]
        return next((job.worker for job in found if job.state == "working"), "")

    session = wait_until(working, what="the job to begin")

    def lives():
        found = store.liveness([session])[session]
        return found is not None and not found.lapsed

    worker.terminate()
    wait_until(lambda: not store.attached("celery").marks, what="the worker to leave its queue")
    lost = LostJobs(lambda _: None)
    for _ in range(3):
        assert list(lost.sweep(store, batch.id, store.now_ms(), -1000))
    assert 1 == batch.status().counts["working"]
    stays_true(lives, for_s=LONGER_THAN_A_RECORD_S, what="the worker in the register")
    site.journal.write("told", "now")
    assert worker.wait() == 0
    assert 1 == batch.wait(20).counts["succeeded"]
    assert store.liveness([session])[session] is None
    batch.close()
