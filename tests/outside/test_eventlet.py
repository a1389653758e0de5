"""Celery's eventlet pool over a server; over a file it is refused."""

from __future__ import annotations

from collections import Counter

from tests.integration.test_celery_malformed import Hostile
from tests.support.files import FileBroker
from tests.support.waiting import wait_until
from tests.support.workers import CeleryWorker

TASKS = 200


def test_a_worker_with_eventlet_runs_each_task_once(site):
    """Two workers of 20 green threads run 200 tasks, with and without a countdown, once each."""
    site.config["task_ignore_result"] = True
    for _ in range(2):
        site.worker(pool="eventlet", concurrency=20)
    ids = [site.send("record", 0.05, countdown=number % 2).id for number in range(TASKS)]
    site.settled(timeout_s=20)
    # The last ones were acknowledged when they began.
    wait_until(lambda: site.journal.finished().total() == TASKS)
    assert Counter(ids) == site.journal.finished() == site.journal.started()


def test_malformed_messages_end_no_worker(site):
    """What makes Celery's own code raise is a dead letter in this pool too; the good ones run."""
    hostile = Hostile(site, site.worker(pool="eventlet", concurrency=2))
    hostile.takes_bad_among_good("record_late")


def test_a_file_is_refused_with_eventlet(site, tmp_path):
    """A worker says in one sentence that a file is no broker for it, and what is one."""
    broker = FileBroker(tmp_path).url()
    worker = CeleryWorker(
        broker, site.journal, directory=tmp_path, name="refused", pool="eventlet", concurrency=2
    )
    try:
        assert 0 != worker.wait(30)
        assert "cannot be used with eventlet" in worker.tail()
        assert "gevent, or a Redis (reliq://)" in worker.tail()
    finally:
        worker.kill_group()
