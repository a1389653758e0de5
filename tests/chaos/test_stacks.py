"""The stacks of a worker that does not end are in its log."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from celery import Celery

from tests.support.waiting import wait_until
from tests.support.workers import pools


@pytest.mark.slow
@pytest.mark.parametrize("pool", pools("prefork", "gevent", of=("prefork", "threads", "gevent")))
def test_a_worker_writes_the_stack_of_a_task(redis_factory, worker_factory, journal, pool):
    """Also where that is in a child of the worker, or in one of its greenlets."""
    url, ledger = redis_factory().url("reliq"), Path(journal.path)
    worker = worker_factory(url, app="tests.chaos.app", pool=pool)
    with Celery(broker=url, set_as_current=False) as client:
        started = client.send_task("chaos.work", (600.0,), queue="chaos")
    wait_until(lambda: ledger.exists() and started.id in ledger.read_text(), what=worker.tail)

    def is_there():
        # Each process of the worker writes its own, at the same time: they may be mixed up.
        worker.signal_group(signal.SIGUSR2)
        return " in work\n" in worker.log()

    wait_until(is_there, what=worker.tail)
