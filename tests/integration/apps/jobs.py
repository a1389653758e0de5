"""An app whose tasks are jobs of batches, and end in every possible way."""

from __future__ import annotations

import os
import signal
import time

from celery.exceptions import Ignore, Reject

import reliq
from tests.integration.apps.tasks import app, journal
from tests.support.journal import FINISHED, STARTED


class NotQualified(Exception):
    """A business failure, which its batch names."""


def _first(task):
    """Return whether a task runs for the first time."""
    return len(journal.entries(STARTED, task.request.id)) == 1


def _end(task, how):  # noqa: C901, PLR0912, PLR0915 - one way after the other
    """End in the given way."""
    journal.write(STARTED, task.request.id)
    if how == "failed":
        raise reliq.Failed("price is missing")
    if how == "named":
        raise NotQualified("too young")
    if how == "error":
        raise ValueError("as told")
    if how == "ignore":
        raise Ignore
    if how == "reject":
        raise Reject("not this one", requeue=False)
    if how == "exit":
        raise SystemExit(3)
    if how == "give back":
        raise Reject("again", requeue=True)
    if how == "requeue" and _first(task):
        raise Reject("not now", requeue=True)
    if how == "retry" and _first(task):
        raise task.retry(countdown=0)
    if how == "retry later" and _first(task):
        raise task.retry(countdown=1)
    if how == "replace":
        raise task.replace(end_early.si("named"))
    if how == "retry, then replace":
        again = end_late.si("retry once more")
        raise task.retry(countdown=0) if _first(task) else task.replace(again)
    if how == "retry once more":
        if task.request.retries:
            raise ValueError("as told")
        raise task.retry(countdown=0)
    if how == "kill" and _first(task):
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "kill always":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "soft limit":
        time.sleep(30)
    if how == "sleep":
        time.sleep(60)
    if how == "succeed late":  # its message was acknowledged long before
        time.sleep(1)
    if how == "progress":
        for n in range(1, 201):
            reliq.progress(n, 200, f"row {n}")
        reliq.report("price is missing")
        reliq.report("and so is the name")
    if how == "add":
        end_late.delay("succeed")  # not a job
        with reliq.add_jobs():
            end_late.delay("succeed")
            reliq.publish_many(end_early, ["succeed"] * 3)
            with reliq.Batch("inner", app=app) as inner:
                inner.map(end_early, ["succeed", "failed"])
    if how == "until told":
        while not journal.entries("told"):
            time.sleep(0.05)
    if how == "retry when cancelled":
        while _first(task) and not reliq.cancelled():
            time.sleep(0.05)
        raise task.retry(countdown=0)
    if how == "until cancelled":
        while not reliq.cancelled():
            time.sleep(0.05)
    journal.write(FINISHED, task.request.id)
    return how


@app.task(bind=True, name="end_early")
def end_early(self, how):
    """Task that is acknowledged when it begins."""
    return _end(self, how)


@app.task(bind=True, name="end_late", acks_late=True)
def end_late(self, how):
    """Task that is acknowledged when it has ended."""
    return _end(self, how)


@app.task(bind=True, name="end_late_requeued", acks_late=True, reject_on_worker_lost=True)
def end_late_requeued(self, how):
    """Task that is redelivered when its child dies."""
    return _end(self, how)


@app.task(bind=True, name="end_late_unacked", acks_late=True, acks_on_failure_or_timeout=False)
def end_late_unacked(self, how):
    """Task that becomes a dead letter when it fails."""
    return _end(self, how)


@app.task(name="report")
def report(batch, what):
    """Record the kind of a callback and its batch."""
    journal.write(f"callback-{what}", batch)
