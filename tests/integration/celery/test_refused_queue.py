"""One of a worker's queues becomes unusable, because a key of it has another type."""

from __future__ import annotations

import pytest

from reliq.lua.keys import queue_keys
from tests.support.workers import pools

QUEUES = ("first", "second")


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", of=("prefork", "threads", "gevent")))
def test_a_worker_goes_on_with_its_other_queues(redis_server, redis_url, site_factory, pool):
    """A worker logs an unusable queue once, with the reason, and uses it again after the repair."""
    site = site_factory(redis_server, result_backend=None, task_ignore_result=True)
    worker = site.worker(pool=pool, concurrency=2, queues=QUEUES)
    for queue in QUEUES:
        site.journal.wait_finished(site.send("record", queue=queue).id)
    site.settled("first")
    raw = redis_server.client()
    raw.set(queue_keys("", "first").delayed, "x")
    stuck = site.send("record", queue="first").id
    worker.wait_log("cannot reserve messages from 'first'")
    for _ in range(3):
        site.journal.wait_finished(site.send("record", queue="second").id)
    raw.delete(queue_keys("", "first").delayed)
    site.journal.wait_finished(stuck)
    assert 1 == worker.log().count("cannot reserve messages from 'first'")
    for queue in QUEUES:
        site.settled(queue)
    assert 0 == worker.shut_down()


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("gevent"))
def test_a_bell_that_holds_something_else(redis_server, redis_url, site_factory, pool):
    """A notification key of another type is logged and removed; the worker is woken as before."""
    site = site_factory(redis_server, result_backend=None, task_ignore_result=True)
    worker = site.worker(pool=pool, concurrency=2, queues=QUEUES)
    site.journal.wait_finished(site.send("record", queue="first").id)
    raw = redis_server.client()
    raw.set(queue_keys("", "first").notification, "x")
    for queue in QUEUES * 2:
        site.journal.wait_finished(site.send("record", queue=queue).id)
    worker.wait_log("has another type: it is removed")
    assert b"string" != raw.type(queue_keys("", "first").notification)
    for queue in QUEUES:
        site.settled(queue)
    assert 0 == worker.shut_down()
