"""A job that is acked when it begins is working before its message is gone."""

from __future__ import annotations

import pytest

from reliq.batches import Batch
from reliq.batches.lost_jobs import MISSING_MS
from tests.contract.jobs import sweep_of
from tests.support.waiting import wait_until

APP = "tests.integration.apps.late_begin"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_job_between_its_ack_and_its_begin_is_not_lost(site, pool):
    """A job is not lost between its ack and its begin, however late its child reports the begin."""
    site.worker(app=APP, pool=pool, concurrency=2)
    with Batch("test", url=site.broker, transport_options=site.transport_options) as batch:
        site.send("end_early", "succeed")
    store = batch._connected()
    wait_until(
        lambda: not store.reads.status("celery").stored, what="the message to be acknowledged"
    )
    for _ in range(2):
        sweep = sweep_of(batch.id, store.now_ms() + MISSING_MS + 1000)
        while sweep.step(store):
            pass
    assert 1 == batch.status().counts["working"]
    site.journal.write("told", "now")
    assert 1 == batch.wait(20).counts["succeeded"]
    batch.close()
