"""An app with two middlewares, which record their calls and fail at a given place.

The header `break` gives the place and the error: "begin-b:ValueError" lets the begin of b raise
it.
"""

from __future__ import annotations

import time

from celery import Task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.worker.request import Request

import reliq
from tests.integration.apps.tasks import app, journal
from tests.support.journal import FINISHED, STARTED


class Recorder(reliq.Middleware):
    """Records its calls; `name` distinguishes the two."""

    def __init__(self, name):
        self.name = name

    def publish(self, context):
        """Record the call, and add a header."""
        self._at("publish", context)
        context.headers.setdefault("seen", "published")

    def deliver(self, context):
        """Record the call."""
        self._at("deliver", context)

    def begin(self, context):
        """Record the call, and keep a value for the end."""
        self._at("begin", context)
        context.local[self] = context.id

    def end(self, context):
        """Record the outcome."""
        assert context.local[self] == context.id
        error = type(context.error).__name__
        journal.write(f"end-{self.name}:{context.state}:{error}:{context.value}", context.id)
        self._raise(f"end-{self.name}", context)

    def _at(self, moment, context):
        where = f"{moment}-{self.name}"
        journal.write(where, context.id)
        self._raise(where, context)

    def _raise(self, where, context):
        asked, _, error = (context.headers.get("break") or "").partition(":")
        if asked != where:
            return
        times = len(journal.entries(where, context.id))
        if error == "Ignore":
            raise Ignore
        if error == "Reject":
            raise Reject("not this one", requeue=False)
        if error == "NoReason":
            raise Reject
        if error == "Requeue" and times == 1:
            raise Reject("not now", requeue=True)
        if error == "Retry" and times == 1:
            raise context.task.retry(countdown=0)
        if error == "ConnectionError" and times == 1:
            raise ConnectionError("not there")
        for kind in (ValueError, OSError, SystemExit):
            if error == kind.__name__:
                raise kind("as told")


reliq.add_middleware(app, Recorder("a"), Recorder("b"))


@app.task(bind=True, name="autoretried", autoretry_for=(ConnectionError,), default_retry_delay=0)
def autoretried(self):
    """Return the number of retries; Celery retries the task for a lost connection."""
    journal.write(STARTED, self.request.id)
    return self.request.retries


@app.task(bind=True, name="ignored")
def ignored(self):
    """Raise Ignore."""
    raise Ignore


@app.task(bind=True, name="rejected", acks_late=True)
def rejected(self):
    """Raise Reject."""
    raise Reject("as told", requeue=False)


@app.task(bind=True, name="leave")
def leave(self):
    """Try to end the process."""
    raise SystemExit(3)


@app.task(bind=True, name="overstay", soft_time_limit=0.5)
def overstay(self):
    """Run until the soft time limit."""
    try:
        time.sleep(30)
    except SoftTimeLimitExceeded:
        journal.write("soft-limit", self.request.id)
        raise


class Called(Task):
    """Base of tasks that are called, as Celery does with a `__call__`."""

    def __call__(self, *args, **kwargs):
        """Record the call."""
        journal.write("called", self.request.id)
        return super().__call__(*args, **kwargs)


@app.task(bind=True, name="called", base=Called)
def called(self):
    """Run inside `Called.__call__`."""
    journal.write(FINISHED, self.request.id)
    return self.request.id


@app.task(bind=True, name="publishes")
def publishes(self):
    """Publish another task; return its id."""
    return app.tasks["record"].delay().id


class Noting(Request):
    """A request class of the application."""

    def on_accepted(self, pid, time_accepted):
        """Record the call."""
        journal.write("accepted", self.id)
        super().on_accepted(pid, time_accepted)


class Noted(Task):
    """Base of tasks with this request class, given by name."""

    Request = f"{__name__}:{Noting.__name__}"


@app.task(bind=True, name="noted", base=Noted)
def noted(self):
    """Return the id of the task."""
    return self.request.id
