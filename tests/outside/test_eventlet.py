"""Celery's eventlet pool over a single server and over a cluster."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from tests.integration.celery.test_malformed import Hostile
from tests.integration.embedded import test_embedded
from tests.integration.embedded.test_embedded import place  # noqa: F401 - a fixture
from tests.support.cluster import RedisCluster
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import ROOT

TASKS = 200
QUEUES = ("celery", "red", "green", "blue")


@pytest.fixture(scope="module")
def cluster():
    """Return a cluster of three masters."""
    with RedisCluster(3) as cluster:
        yield cluster


def test_a_worker_with_eventlet_runs_each_task_once(site):
    """Two workers of 20 green threads run 200 tasks, with and without a countdown, once each."""
    site.config["task_ignore_result"] = True
    for _ in range(2):
        site.worker(pool="eventlet", concurrency=20)
    ids = [site.send("record", 0.05, countdown=number % 2).id for number in range(TASKS)]
    site.settled(timeout_s=20)
    # The last tasks were acked when they began.
    wait_until(lambda: site.journal.finished().total() == TASKS)
    assert Counter(ids) == site.journal.finished() == site.journal.started()


def test_malformed_messages_end_no_worker(site):
    """A message that makes Celery's own code raise is dead-lettered, and the others run."""
    hostile = Hostile(site, site.worker(pool="eventlet", concurrency=2))
    hostile.takes_bad_among_good("record_late")


def test_an_embedded_broker(place, site_factory, redis_server):  # noqa: F811
    """In this pool too, broker and worker end together, and a task that acks late runs once."""
    test_embedded.test_worker_server_and_keeper_are_told_to_end_together(
        place, site_factory, redis_server, "eventlet"
    )


def test_two_large_commands_over_one_connection(redis_url):
    """One green thread at a time waits for room in the socket; eventlet allows no second."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.outside.programs.green", redis_url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "20000000 20000000\n") == (done.returncode, done.stdout), done.stderr


def test_a_worker_with_eventlet_over_a_cluster(cluster, tmp_path):
    """An eventlet worker runs 20 tasks from several nodes once each, and shuts down warm."""
    config = {"task_ignore_result": True, "result_backend": None}
    site = CelerySite(cluster, "reliq", tmp_path, config)
    try:
        worker = site.worker(pool="eventlet", concurrency=5, queues=QUEUES)
        ids = [site.send("record", queue=QUEUES[number % 4]).id for number in range(20)]
        for task in ids:
            site.journal.wait_finished(task)
        assert 0 == worker.shut_down()
        assert Counter(ids) == site.journal.started()
    finally:
        site.close()


def test_two_that_wait_for_one_connection_of_a_cluster(cluster):
    """A notifier and a call that wait for one connection of a cluster both continue."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.outside.programs.green_cluster", cluster.url()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "[None] True\n" * 2) == (done.returncode, done.stdout), done.stderr
