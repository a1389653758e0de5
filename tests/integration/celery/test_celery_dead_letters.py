"""Dead letters of real workers: counted, with their reason, and run again when replayed."""

from __future__ import annotations

import pytest

from reliq.admin import Inspector
from tests.support.waiting import wait_until

LIMITED = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "broker_transport_options": {
        "visibility_timeout": 2.0,
        "restore_interval": 0.5,
        "orphan_grace": 0.5,
        "poll_interval": 1.0,
        "delivery_limit": 3,
    },
}


@pytest.fixture
def limited(redis_server, redis_url, site_factory):
    """Return an application with a delivery limit of 3."""
    return site_factory(redis_server, **LIMITED)


@pytest.mark.slow
def test_a_task_that_kills_its_child_meets_its_limit(limited):
    """A task that kills its child is a dead letter after its third failure; other tasks run.

    The dead letter's error names the death of the process.
    """
    worker = limited.worker(pool="prefork", concurrency=2)
    poison = limited.send("poison")
    others = [limited.send("record_late").id for _ in range(20)]
    limited.settled(timeout_s=40, dead=1)
    assert 3 == limited.journal.runs(poison.id)
    assert set(others) <= set(limited.journal.finished())
    with Inspector(limited.broker) as inspector:
        (dead_letter,) = inspector.dead_letters("celery", task="poison")
    assert (poison.id, "delivery_limit", 3) == (
        dead_letter.id,
        dead_letter.reason,
        dead_letter.count,
    )
    assert "WorkerLostError: Worker exited prematurely" in dead_letter.error
    worker.wait_log("was dead-lettered: it reached its delivery limit with 3 failed")


def test_a_rejected_task_is_kept_and_replayed(site):
    """A task with Reject(requeue=False) is a dead letter; the replayed task runs like a new one."""
    site.worker(pool="solo")
    rejected = site.send("reject_first")
    site.settled(dead=1)
    with Inspector(site.broker) as inspector:
        (dead_letter,) = inspector.dead_letters("celery", reason="rejected")
        assert ("reject_first", rejected.id) == (dead_letter.task, dead_letter.id)
        assert 1 == inspector.replay("celery", task="reject_first")
    wait_until(lambda: rejected.id in site.journal.finished())
    site.settled()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_requeued_task_is_redelivered_with_its_count(site, pool):
    """A task after Reject(requeue=True) sees that it was delivered before, and how often."""
    site.worker(pool=pool)
    result = site.send("requeue_first", 2)
    assert [[False, None], [True, 1], [True, 2]] == result.get(timeout=20)
    site.settled()
