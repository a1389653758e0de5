"""The changes of jobs that the tests of batches report."""

from __future__ import annotations

from reliq.batches.job_reports import JobReports
from reliq.batches.jobs import Change
from reliq.batches.lost_jobs import Sweep
from reliq.consumer.batch_passes import BatchPasses
from reliq.consumer.runner import Runner
from reliq.values.values import ignore_result

TAG, OTHER_TAG = "a" * 30, "b" * 30


def enter(job="j", state="waiting", tag=TAG, retries=0, queue="q"):
    """Return the report that a job is about to be published."""
    return Change("enter", job, state, retries, tag=tag, queue=queue)


def seal(tag=TAG):
    """Return the report that everything is published, by the publisher that created *tag*."""
    return Change("seal", tag=tag)


def begin(job="j", token=1, retries=0, who="s/1", tag=TAG):
    """Return the report that a worker has begun a delivery of a job."""
    return Change("begin", job, "", retries, token, tag, "q", who)


def end(state, job="j", token=1, retries=0, why=""):
    """Return the report of a job's end."""
    return Change("end", job, state, retries, token, text=why)


def lost(job="j", tag=TAG, why="rejected"):
    """Return the report that the broker has dead-lettered or dropped a message."""
    return Change("end", job, "lost", tag=tag, queue="q", text=why)


def job_of(batches, batch, job):
    """Return the record of a job; None without that job."""
    return next((one for part in batches.jobs(batch) for one in part if one.id == job), None)


def passes_over(later):
    """Return a consumer's passes over batches, which append their work to *later*."""
    reports = JobReports(lambda batch: passes.soon(batch))  # noqa: PLW0108 - made below
    runner = Runner()
    runner.due = later
    passes = BatchPasses(runner, reports, lambda _: None)
    return passes


def sweep_of(batch, now_ms, due=ignore_result):
    """Return a sweep by a process that runs no jobs."""
    return Sweep(batch, now_ms, JobReports(due), lambda _: None)
