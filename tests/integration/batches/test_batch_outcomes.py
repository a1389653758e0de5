"""A batch learns how each job ends, in every pool, with early and with late acks."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from threading import Thread

import pytest
from celery import group

from reliq.admin import Inspector
from reliq.batches import Batch
from tests.support.servers import RedisServer
from tests.support.site import CelerySite
from tests.support.waiting import wait_until
from tests.support.workers import POOLS

APP = "tests.integration.apps.jobs"
ENDS_S = 20
TASKS = ["end_early", "end_late"]
NAMED = "tests.integration.apps.jobs.NotQualified"


class Jobs:
    """A site with one worker, and a batch of one job at a time."""

    def __init__(self, site, pool):
        self.site, self.pool = site, pool
        self.url = site.broker

    def batch(self, **options):
        """Return a batch of the site's broker."""
        return Batch("test", url=self.url, transport_options=self.site.transport_options, **options)

    def run(self, task, how, **options):
        """Publish a job and wait for its batch; return its state, and the failure reasons."""
        with self.batch(failures=(NAMED,)) as batch:
            self.site.send(task, how, **options)
        status = batch.wait(ENDS_S)
        batch.close()
        assert 1 == status.total
        (state,) = [state for state, count in status.counts.items() if count]
        return state, [failure.reason for failure in status.failures]


@pytest.fixture(scope="module", params=POOLS)
def jobs(request, scheme, tmp_path_factory):
    """Return a site with one running worker of the pool."""
    with ExitStack() as stack:
        server = RedisServer()
        stack.callback(server.destroy)
        site = CelerySite(server.start(), scheme, tmp_path_factory.mktemp(request.param))
        stack.callback(site.close)
        site.worker(app=APP, pool=request.param, concurrency=2)
        yield Jobs(site, request.param)


def in_pools(*pools):
    """Return a mark: the test concerns these pools alone."""
    return pytest.mark.parametrize("jobs", pools, indirect=True)


IN_ALL_BUT_SOLO = in_pools(*(pool for pool in POOLS if pool != "solo"))  # it hears between tasks
IN_PREFORK = in_pools("prefork")  # a child can be interrupted and killed
IN_KILLABLE = in_pools("prefork", "gevent")  # a child or a greenlet can be killed


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("how", "state", "why"),
    [
        ("succeed", "succeeded", []),
        ("failed", "failed", ["price is missing"]),
        ("named", "failed", ["NotQualified: too young"]),
        ("error", "error", ["ValueError: as told"]),
        ("ignore", "succeeded", []),
        ("retry", "succeeded", []),
        ("retry later", "succeeded", []),
        ("replace", "failed", ["NotQualified: too young"]),
        ("retry, then replace", "error", ["ValueError: as told"]),
    ],
)
def test_how_a_job_ends(jobs, task, how, state, why):
    """A batch has the final state of each job, and the text of the exception of a failed one."""
    assert (state, why) == jobs.run(task, how)


@pytest.mark.parametrize("task", TASKS)
def test_a_rejected_job(jobs, task):
    """A rejected job ends in error; its message is a dead letter only with late acks."""
    state, (why,) = jobs.run(task, "reject")
    assert "error" == state
    assert "not this one" in why


def test_a_job_that_is_given_back(jobs):
    """A job that is requeued runs again, and counts once."""
    assert ("succeeded", []) == jobs.run("end_late", "requeue")


def test_a_job_that_is_given_back_when_it_is_acknowledged(jobs):
    """An acked job that is requeued is an error at once, since there is no message to requeue."""
    assert ("error", ["Reject: again"]) == jobs.run("end_early", "give back")


@pytest.mark.parametrize("task", TASKS)
def test_a_job_that_exits(jobs, task):
    """A job that exits is an error in every pool; its message is settled like any other."""
    state, (why,) = jobs.run(task, "exit")
    assert ("error", True) == (state, "SystemExit" in why), why
    with Inspector(jobs.url) as inspector:
        assert [] == [one for one in inspector.dead_letters("celery") if one.reason == "malformed"]


def test_a_failed_job_that_is_not_acked(jobs):
    """A failed job that is not acked has a dead letter, and its batch has the error."""
    assert ("error", ["ValueError: as told"]) == jobs.run("end_late_unacked", "error")


@pytest.mark.slow
@IN_ALL_BUT_SOLO
def test_a_revoked_job(jobs):
    """A job that is revoked before it begins is dropped by the worker, and is an error."""
    with jobs.batch() as batch:
        result = jobs.site.send("end_late", "succeed", countdown=2)
        jobs.site.app.control.revoke(result.id)
    status = batch.wait(ENDS_S)
    assert 1 == status.counts["error"]
    assert "revoked" in status.failures[0].reason


@IN_PREFORK
def test_a_soft_time_limit(jobs):
    """A soft time limit is an exception like any other."""
    state, (why,) = jobs.run("end_late", "soft limit", soft_time_limit=1)
    assert ("error", True) == (state, "SoftTimeLimitExceeded" in why)


@pytest.mark.parametrize("task", TASKS)
@IN_PREFORK
def test_a_hard_time_limit(jobs, task):
    """A worker reports the job of a child that was killed at its hard time limit."""
    state, (why,) = jobs.run(task, "sleep", time_limit=1)
    assert ("error", True) == (state, "TimeLimitExceeded" in why)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@IN_PREFORK
def test_a_child_that_dies(jobs, task):
    """A worker reports the job of a child that died."""
    state, (why,) = jobs.run(task, "kill always")
    assert ("error", True) == (state, "WorkerLostError" in why)


@pytest.mark.slow
@IN_PREFORK
def test_a_child_that_dies_and_the_job_is_delivered_again(jobs):
    """A job that is delivered again after its child died counts once."""
    assert ("succeeded", []) == jobs.run("end_late_requeued", "kill")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@IN_KILLABLE
def test_a_terminated_job(jobs, task):
    """A worker reports a running job that was terminated."""
    with jobs.batch() as batch:
        result = jobs.site.send(task, "sleep")
        wait_until(lambda: batch.status().counts["working"], what="the job to begin")
        jobs.site.app.control.revoke(result.id, terminate=True, signal="SIGKILL")
    status = batch.wait(ENDS_S)
    assert 1 == status.counts["error"], status


@pytest.mark.slow
@IN_KILLABLE
def test_a_cancelled_batch_that_is_terminated(jobs):
    """cancel(terminate=True) kills running jobs, which count as cancelled."""
    with jobs.batch(app=jobs.site.app) as batch:
        first = jobs.site.send("end_late", "sleep")
        wait_until(lambda: batch.status().counts["working"], what="the job to begin")
        later = jobs.site.send("end_early", "succeed", countdown=1)
        batch.cancel(terminate=True)
    status = batch.wait(ENDS_S)
    assert (2, []) == (status.counts["cancelled"], status.failures)
    assert [] == jobs.site.journal.entries("finished", first.id)
    assert [] == jobs.site.journal.entries("started", later.id)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_who_works_on_a_job(jobs, task):
    """A batch names the session that works on a job, as in the register, and the job's message."""
    with jobs.batch() as batch:
        jobs.site.send(task, "until cancelled")
    wait_until(lambda: batch.status().counts["working"], what="the job to begin")
    store = batch._connected()
    (job,) = [job for part in store.batches.jobs(batch.id) for job in part]
    assert "celery" == job.queue
    assert job.token > 0
    assert job.tag
    assert store.liveness([job.worker])[job.worker] is not None
    batch.cancel()
    batch.wait(ENDS_S)
    batch.close()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_cancelled_batch(jobs, task):
    """A cancelled batch skips waiting jobs; its running jobs learn of the cancellation."""
    with jobs.batch() as batch:
        if jobs.pool != "solo":
            jobs.site.send(task, "until cancelled")
            wait_until(lambda: batch.status().counts["working"], what="the job to begin")
        later = jobs.site.send(task, "succeed", countdown=1)
        batch.cancel()
    status = batch.wait(ENDS_S)
    assert (1, int(jobs.pool != "solo")) == (status.counts["cancelled"], status.counts["succeeded"])
    assert [] == jobs.site.journal.entries("started", later.id)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_job_that_is_tried_again_when_its_batch_is_cancelled(jobs, task):
    """A job that is retried after a cancellation is cancelled: no failure, and no dead letter."""
    with jobs.batch() as batch:
        job = jobs.site.send(task, "retry when cancelled")
        wait_until(lambda: batch.status().counts["working"], what="the job to begin")
        batch.cancel()
    status = batch.wait(ENDS_S)
    assert (1, []) == (status.counts["cancelled"], status.failures)
    assert 1 == len(jobs.site.journal.entries("started", job.id))
    batch.close()


@pytest.mark.parametrize("task", TASKS)
def test_what_a_job_says(jobs, task):
    """A batch has a job's last progress at its end, however many there were, and its reports."""
    with jobs.batch() as batch:
        job = jobs.site.send(task, "progress").id
    status = batch.wait(ENDS_S)
    shown = [(one.job, one.state, one.done, one.total, one.text) for one in status.progress]
    assert [(job, "succeeded", 200, 200, "row 200")] == shown
    texts = [(one.job, one.text) for one in status.messages]
    assert [(job, "and so is the name"), (job, "price is missing")] == texts


@pytest.mark.slow
def test_a_job_that_adds_jobs(jobs):
    """A job adds tasks, mapped calls and a nested batch to its batch, which is sealed."""
    with jobs.batch() as batch:
        jobs.site.send("end_late", "add", countdown=1)
    assert batch.status().sealed_ms
    status = batch.wait(ENDS_S)
    batch.close()
    assert {"succeeded": 5, "failed": 1} == {k: n for k, n in status.counts.items() if n}
    assert "0 of its 2 jobs ended in error, 1 failed" == status.failures[0].reason


def test_another_thread_adds_jobs(jobs):
    """Another thread adds jobs only in an adding() block; the tasks of a group are jobs."""
    end_late = jobs.site.app.signature("end_late", ("succeed",), app=jobs.site.app)

    def publish(adding):
        with adding:
            jobs.site.send("end_late", "succeed")

    with jobs.batch() as batch:
        for adding in (nullcontext(), batch.adding()):
            thread = Thread(target=publish, args=(adding,))
            thread.start()
            thread.join()
        group([end_late, end_late], app=jobs.site.app).apply_async()
    status = batch.wait(ENDS_S)
    batch.close()
    assert {"succeeded": 3} == {k: n for k, n in status.counts.items() if n}


def test_callbacks_are_published_once(jobs):
    """Callbacks are published once, with the batch's id: complete, and success or failure."""
    with Inspector(jobs.url, transport_options=jobs.site.transport_options) as inspector:
        inspector.purge_dead_letters("celery")
    report = jobs.site.app.signature
    callbacks = {
        f"on_{what}": report("report", (what,), app=jobs.site.app)
        for what in ("success", "complete", "failure")
    }
    for how, said in (("succeed", {"success", "complete"}), ("failed", {"failure", "complete"})):
        with jobs.batch(**callbacks) as batch:
            for _ in range(3):
                jobs.site.send("end_late", how)
        batch.wait(ENDS_S)

        def heard(batch=batch):
            every = jobs.site.journal.entries(key=batch.id)
            return [entry.event.removeprefix("callback-") for entry in every]

        wait_until(lambda heard=heard, said=said: said <= set(heard()), what=f"{said}")
        jobs.site.settled()
        assert sorted(said) == sorted(heard())
