"""Batch.map: calls of a task are jobs, entered and sent hundreds at a time."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial

import pytest
from celery import Celery
from kombu import Queue

import reliq
from reliq import Batch, BatchClosed, PartlyPublished
from reliq.admin import Inspector
from reliq.batches.lost_jobs import MISSING_MS
from tests.contract.jobs import sweep_of
from tests.support.audits import assert_balanced
from tests.support.interrupts import Interrupter
from tests.support.site import close_app


@pytest.fixture
def one(redis_url):
    """Return the task of an application on the shared server, whose ledgers are audited."""
    with ExitStack() as stack:
        app = Celery("mapped", broker=redis_url, set_as_current=False)
        app.conf.result_backend = None

        @app.task(name="mapped.one", shared=False)
        def one(value):
            """Take one argument."""

        stack.callback(close_app, app)
        yield app.tasks["mapped.one"]
    assert_balanced(redis_url)


@pytest.fixture
def batch(redis_url):
    """Return a batch that is not open."""
    batch = Batch("mapped", url=redis_url)
    yield batch
    batch.close()


def ready(url):
    """Return the number of ready messages."""
    with Inspector(url) as inspector:
        return inspector.status("celery").ready if "celery" in inspector.queues() else 0


def entered(batch):
    """Return the number of jobs in each state, without zeros."""
    return {state: count for state, count in batch.status().counts.items() if count}


def test_each_item_is_a_job(one, batch, redis_url):
    """Each mapped item is a job with its task id; a message outside the block is none."""
    one.delay(0)
    ids = []
    with batch:
        assert 1200 == batch.map(one, range(1200), on_sent=ids.extend)
        one.delay(1)
    reliq.publish_many(one, range(3))
    assert {"waiting": 1201} == entered(batch)
    jobs = [job.id for part in batch._connected().batches.jobs(batch.id) for job in part]
    assert set(ids) < set(jobs)
    assert 1205 == ready(redis_url)


def test_options_are_those_of_publish_many(one, batch):
    """Batch.map takes the options of publish_many, such as countdown and star."""
    with batch:
        batch.map(one, [(1,), {"value": 2}], star=True, countdown=600)
    assert {"delayed": 2} == entered(batch)


def test_it_takes_what_an_iterator_gives(one, batch):
    """Batch.map reads an iterator a chunk at a time, and keeps none of its items."""
    most = 0
    taken = sent = 0

    def rows():
        nonlocal most, taken
        for number in range(3000):
            taken += 1
            most = max(most, taken - sent)
            yield number

    def on_sent(ids):
        nonlocal sent
        sent += len(ids)

    with batch:
        batch.map(one, rows(), on_sent=on_sent)
    assert most <= 501
    assert {"waiting": 3000} == entered(batch)


@pytest.mark.parametrize("how", ["seal", "cancel"])
def test_a_batch_that_takes_no_more(one, batch, redis_url, how):
    """Batch.map stops if the batch is sealed or cancelled; the error lists the unsent items."""

    def rows():
        yield from range(500)
        getattr(batch, how)()
        yield from range(500, 700)

    with batch, pytest.raises(PartlyPublished) as caught:
        batch.map(one, rows())
    assert isinstance(caught.value.__cause__, BatchClosed)
    found = caught.value
    assert (500, list(range(500, 700)), ()) == (found.sent, found.unsent, found.uncertain)
    assert 500 == ready(redis_url)
    assert {"waiting": 500} == entered(batch)


def test_a_batch_that_is_not_there(one, batch, redis_url):
    """Batch.map stores nothing for a batch that does not exist."""
    with pytest.raises(PartlyPublished, match="has no such batch") as caught:
        batch.map(one, range(3))
    assert (0, [0, 1, 2]) == (caught.value.sent, caught.value.unsent)
    assert 0 == ready(redis_url)


def looked_at(batch):
    """Sweep all jobs as if they were old; return the number of jobs that remain."""
    store = batch._connected()
    look = sweep_of(batch.id, store.now_ms() + MISSING_MS + 1)
    while look.step(store):
        pass
    return batch.status().total


@pytest.mark.slow
@pytest.mark.parametrize("how", ["together", "one by one"])
def test_an_interrupt_wherever_it_strikes(one, batch, redis_url, how):
    """An interrupt withdraws unsent jobs at once; a later sweep removes those in transit."""
    files = ("entries.py", "transports/publish/publish_buffer.py", "sending.py", "publishing.py")
    publish = partial(batch.map, one, range(3)) if how == "together" else one.delay
    point = 1
    with batch:
        while True:
            interrupter = Interrupter(files, point)
            interrupter.run(publish if how == "together" else partial(publish, 1))
            if not interrupter.where:
                break
            left = batch.status().total - ready(redis_url)
            if "entries.py" in interrupter.where and "withdraw" not in interrupter.where:
                assert 0 == left, interrupter.where
            assert looked_at(batch) == ready(redis_url), interrupter.where
            point += 5
    assert looked_at(batch) == ready(redis_url)
    assert 0 == batch.status().counts["error"]


def test_a_child_that_was_forked_in_the_block(one, batch):
    """A child that was forked in the block seals nothing when it leaves it; its parent goes on."""
    with batch:
        one.delay(0)
        child = os.fork()
        if not child:
            batch.__exit__(None, None, None)
            os._exit(0)
        assert 0 == os.waitpid(child, 0)[1]
        one.delay(1)
    status = batch.status()
    assert (2, True) == (status.total, status.sealed_ms is not None)


def test_middleware_may_refuse_a_job(one, batch, redis_url):
    """A job that middleware refuses is not entered."""

    class Refusing(reliq.Middleware):
        def publish(self, context):
            if context.args == (3,):
                raise PermissionError("not this one")

    reliq.add_middleware(one.app, Refusing())
    with batch, pytest.raises(PartlyPublished):
        batch.map(one, range(6))
    assert {"waiting": 3} == entered(batch)
    assert 3 == ready(redis_url)


def test_a_full_queue(one, batch, redis_url):
    """Calls that do not fit into a full queue are no jobs."""
    limits = {"x-max-length": 5, "x-overflow": "reject-publish"}
    with batch, pytest.raises(PartlyPublished):
        batch.map(one, range(9), queue=Queue("full", queue_arguments=limits))
    assert {"waiting": 5} == entered(batch)
