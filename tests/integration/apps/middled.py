"""An app with a chain of two, which write what they are called for and fail where they are told.

The header `break` says where: "begin-b:ValueError" has b's begin raise that.
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
    """Writes its calls; `name` tells the two apart."""

    def __init__(self, name):
        self.name = name

    def publish(self, context):
        """Add a header of its own."""
        self._at("publish", context)
        context.headers.setdefault("seen", "published")

    def deliver(self, context):
        """Write it."""
        self._at("deliver", context)

    def begin(self, context):
        """Write it, and keep something for the end."""
        self._at("begin", context)
        context.local[self] = context.id

    def end(self, context):
        """Write the outcome."""
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
    """Be tried again for a lost connection."""
    journal.write(STARTED, self.request.id)
    return self.request.retries


@app.task(bind=True, name="ignored")
def ignored(self):
    """Ask to be ignored."""
    raise Ignore


@app.task(bind=True, name="rejected", acks_late=True)
def rejected(self):
    """Ask to be rejected."""
    raise Reject("as told", requeue=False)


@app.task(bind=True, name="leave")
def leave(self):
    """Try to end the process."""
    raise SystemExit(3)


@app.task(bind=True, name="overstay", soft_time_limit=0.5)
def overstay(self):
    """Take too long."""
    try:
        time.sleep(30)
    except SoftTimeLimitExceeded:
        journal.write("soft-limit", self.request.id)
        raise


class Called(Task):
    """Its tasks are called, which Celery does where there is a `__call__`."""

    def __call__(self, *args, **kwargs):
        """Write it."""
        journal.write("called", self.request.id)
        return super().__call__(*args, **kwargs)


@app.task(bind=True, name="called", base=Called)
def called(self):
    """Run inside of `Called.__call__`."""
    journal.write(FINISHED, self.request.id)
    return self.request.id


@app.task(bind=True, name="publishes")
def publishes(self):
    """Publish another task; return its id."""
    return app.tasks["record"].delay().id


class Noting(Request):
    """A request of the application's own."""

    def on_accepted(self, pid, time_accepted):
        """Write it."""
        journal.write("accepted", self.id)
        super().on_accepted(pid, time_accepted)


class Noted(Task):
    """Its requests are such, by name."""

    Request = f"{__name__}:{Noting.__name__}"


@app.task(bind=True, name="noted", base=Noted)
def noted(self):
    """Do nothing."""
    return self.request.id
