"""The log of a worker that does not end contains its stacks."""

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
    """A worker logs a task's stack, even if the task runs in a child or in a greenlet."""
    url, ledger = redis_factory().url("reliq"), Path(journal.path)
    worker = worker_factory(url, app="tests.chaos.app", pool=pool)
    with Celery(broker=url, set_as_current=False) as client:
        started = client.send_task("chaos.work", (600.0,), queue="chaos")
    wait_until(lambda: ledger.exists() and started.id in ledger.read_text(), what=worker.tail)

    def is_there():
        # All processes of the worker write at the same time, so their lines may be mixed.
        worker.signal_group(signal.SIGUSR2)
        return " in work\n" in worker.log()

    wait_until(is_there, what=worker.tail)
