"""A job is lost if no worker runs it, and is not lost while its worker shuts down."""

from __future__ import annotations

import pytest

from reliq.batches import Batch
from reliq.batches.jobs import Change
from reliq.batches.lost_jobs import MISSING_MS
from tests.contract.jobs import sweep_of
from tests.support.waiting import stays_true, wait_until

APP, QUICK = "tests.integration.apps.jobs", "tests.integration.apps.killed"
LONGER_THAN_A_RECORD_S = 6
"""Longer than the record of a consumer lasts in the register, which is four seconds here."""
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_the_jobs_of_a_warm_shutdown_are_not_lost(site, pool):
    """A warm shutdown loses no job, however long it takes, not even one that was acked early."""
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
    for _ in range(3):
        sweep = sweep_of(batch.id, store.now_ms() + MISSING_MS + 1000)
        while sweep.step(store):
            pass
    assert 1 == batch.status().counts["working"]
    stays_true(lives, for_s=LONGER_THAN_A_RECORD_S, what="the worker in the register")
    site.journal.write("told", "now")
    assert worker.wait() == 0
    assert 1 == batch.wait(20).counts["succeeded"]
    assert store.liveness([session])[session] is None
    batch.close()


def test_a_job_of_which_its_worker_knows_nothing_is_lost(site):
    """A job is lost if its worker runs but does not know it, as when a node lost the job's end.

    The jobs that the worker does run go on.
    """
    site.worker(app=QUICK, pool="prefork", concurrency=2)
    options = site.transport_options
    with Batch("test", url=site.broker, transport_options=options) as batch:
        site.send("end_early", "until told")
        site.send("end_late", "until told")
        jobs = batch._connected().batches
        wait_until(lambda: batch.status().counts["working"] == 2, what="the jobs to begin")
        (session, *_) = {job.worker for part in jobs.jobs(batch.id) for job in part}
        entered = Change("enter", "j", "waiting", tag="t", queue="celery")
        jobs.change(batch.id, [entered, Change("begin", "j", "", 0, 9, "t", "celery", session)])
    wait_until(lambda: batch.status().counts["error"], what="the look that finds it")
    (failure,) = batch.status().failures
    assert ("j", 2) == (failure.job, batch.status().counts["working"])
    assert session in failure.reason
    site.journal.write("told", "now")
    assert 2 == batch.wait(20).counts["succeeded"]
    batch.close()
