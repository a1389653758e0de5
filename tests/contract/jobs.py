"""What is said of jobs in the tests of batches."""

from __future__ import annotations

from reliq.store.jobs import Change

TAG, OTHER_TAG = "a" * 30, "b" * 30


def enter(job="j", state="waiting", tag=TAG, retries=0, queue="q"):
    """Say that a job is about to be published."""
    return Change("enter", job, state, retries, tag=tag, queue=queue)


def seal(tag=TAG):
    """Say that all is published, as the publisher that has made *tag* does."""
    return Change("seal", tag=tag)


def begin(job="j", token=1, retries=0, who="s/1", tag=TAG):
    """Say that a delivery of a job is worked on."""
    return Change("begin", job, "", retries, token, tag, "q", who)


def end(state, job="j", token=1, retries=0, why=""):
    """Say how it has ended."""
    return Change("end", job, state, retries, token, text=why)


def lost(job="j", tag=TAG, why="rejected"):
    """Say that the broker has given up on a message."""
    return Change("end", job, "lost", tag=tag, queue="q", text=why)


def job_of(batches, batch, job):
    """Return what is known of a job, None where there is none."""
    return next((one for part in batches.jobs(batch) for one in part if one.id == job), None)
