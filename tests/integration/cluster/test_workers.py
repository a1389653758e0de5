"""Celery over a Redis Cluster, with real nodes and workers of every pool."""

from __future__ import annotations

import pytest

from tests.support.site import CelerySite
from tests.support.workers import pools

LATE = {"task_acks_late": True, "task_ignore_result": True, "result_backend": None}
QUEUES = ("celery", "red", "green", "blue")


@pytest.fixture
def site(cluster, tmp_path_factory):
    """Return a Celery application on the cluster, which is empty."""
    cluster.flush()
    site = CelerySite(cluster, "reliq", tmp_path_factory.mktemp("site"), dict(LATE))
    yield site
    site.close()


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", "gevent"))
def test_each_task_runs_once(site, pool):
    """Each task from queues at several nodes runs once, also one with a countdown."""
    worker = site.worker(pool=pool, concurrency=2, queues=QUEUES)
    sent = [site.send("record", queue=QUEUES[number % 4]).id for number in range(40)]
    sent.append(site.send("record", queue="red", countdown=1).id)
    for task in sent:
        site.journal.wait_finished(task)
    for queue in QUEUES:
        site.settled(queue)
    assert worker.shut_down() == 0
    assert set(site.journal.started().values()) == {1}
