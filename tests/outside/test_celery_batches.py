"""celery-batches, with its required Celery version beside the installed one."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from tests.outside import fetching
from tests.support.waiting import wait_until

APP = "tests.outside.programs.batches"


@pytest.fixture(scope="session")
def batches(source_cache):
    """Return a folder with celery-batches and its dependencies, for PYTHONPATH."""
    return fetching.install_beside(["celery-batches>=0.10"], source_cache)


def test_batches_are_whole_and_survive_a_worker(batches, site_factory, redis_server, redis_url):
    """Tasks run ten at a time, each once; a killed worker's unfinished tasks are redelivered."""
    del redis_url  # emptied
    # celery-batches reserves a batch in advance, and acks it as a whole when the task gets it.
    config = {"worker_prefetch_multiplier": 0, "task_ignore_result": True, "result_backend": None}
    site = site_factory(redis_server, **config)
    env = {"PYTHONPATH": os.pathsep.join([str(batches), str(fetching.ROOT)])}
    first = site.worker(app=APP, env=env)
    ids = [site.send("gather").id for _ in range(25)]
    wait_until(lambda: len(site.journal.finished()) == 20, what=first.tail)
    assert ["10", "10"] == [entry.key for entry in site.journal.entries("started")]
    site.wait_counts(unacked=5, ready=0)

    first.kill_group()
    site.worker(app=APP, env=env)
    ids += [site.send("gather").id for _ in range(5)]
    wait_until(lambda: len(site.journal.finished()) == 30, timeout_s=60, what=time.ctime)
    site.settled()
    assert Counter(ids) == site.journal.finished()
