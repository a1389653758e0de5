"""The tasks of the tests' workers, which record all their steps in the journal.

The module is independent of the transport under test: only the broker URL differs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from billiard.connection import Connection
from celery import Celery
from celery.exceptions import Reject

from tests.support.journal import FINISHED, STARTED, Journal

_LENGTH = 4
"""Bytes that a prefork child writes before its result."""

journal = Journal(os.environ["RELIQ_TEST_JOURNAL"])
app = Celery("tasks", broker=os.environ.get("RELIQ_TEST_BROKER"))
app.conf.update(json.loads(os.environ.get("RELIQ_TEST_CONFIG", "{}")))


@app.task(bind=True, name="record")
def record(self, seconds=0.0):
    """Run for *seconds*; record the start and the end."""
    journal.write(STARTED, self.request.id)
    if seconds:
        time.sleep(seconds)
    journal.write(FINISHED, self.request.id)
    return self.request.id


def wait_for(task_id, path):
    """Wait until a file exists; record the start and the end."""
    journal.write(STARTED, task_id)
    while not Path(path).exists():
        time.sleep(0.05)
    journal.write(FINISHED, task_id)


@app.task(bind=True, name="record_until")
def record_until(self, path):
    """Wait until a file exists; record the start and the end."""
    wait_for(self.request.id, path)


@app.task(bind=True, name="record_until_late", acks_late=True)
def record_until_late(self, path):
    """Do as `record_until`, acked at the end."""
    wait_for(self.request.id, path)


@app.task(bind=True, name="tick")
def tick(self, seconds):
    """Write a line ten times a second, for *seconds*."""
    journal.write(STARTED, self.request.id)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        journal.write("tick", self.request.id)
        time.sleep(0.1)
    journal.write(FINISHED, self.request.id)


@app.task(bind=True, name="record_late", acks_late=True)
def record_late(self, seconds=0.0):
    """Do as `record`, acked at the end."""
    return record.__wrapped__.__func__(self, seconds)


@app.task(bind=True, name="take")
def take(self, value=None):
    """Take one value of any type, and end at once."""
    del value
    return record.__wrapped__.__func__(self)


@app.task(bind=True, name="take_late", acks_late=True)
def take_late(self, value=None):
    """Do as `take`, acked at the end."""
    del value
    return record.__wrapped__.__func__(self)


@app.task(bind=True, name="where")
def where(self):
    """Return the properties of the task's process and of its delivery."""
    journal.write(STARTED, self.request.id)
    return {
        "pid": os.getpid(),
        "hostname": self.request.hostname,
        "priority": (self.request.delivery_info or {}).get("priority"),
        "redelivered": bool((self.request.delivery_info or {}).get("redelivered")),
        "modules": [name for name in ("reliq", "gevent") if name in sys.modules],
    }


@app.task(name="add")
def add(x, y):
    """Return the sum."""
    return x + y


@app.task(name="total")
def total(numbers):
    """Return the sum of a list."""
    return sum(numbers)


@app.task(bind=True, name="fail_first", max_retries=5)
def fail_first(self, times, countdown=0.1):
    """Retry *times* times, then succeed."""
    journal.write(STARTED, self.request.id)
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
    journal.write(FINISHED, self.request.id)
    return self.request.retries


@app.task(bind=True, name="die_first", acks_late=True)
def die_first(self, times=1):
    """Kill its own process (a prefork child) in the first *times* runs."""
    journal.write(STARTED, self.request.id)
    if journal.runs(self.request.id) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    journal.write(FINISHED, self.request.id)


@app.task(bind=True, name="explode")
def explode(self):
    """Raise ValueError."""
    journal.write(STARTED, self.request.id)
    raise ValueError("as told")


@app.task(bind=True, name="end_first")
def end_first(self, how, path):
    """Raise, sleep, or kill this child or its worker in the first run; end at once in a later one.

    The first run waits for a file. Its settings are those of the app.
    """
    journal.write(STARTED, self.request.id)
    if journal.runs(self.request.id) == 1:
        while not Path(path).exists():
            time.sleep(0.05)
        if how == "raises":
            raise ValueError("as told")
        if how == "times out":
            time.sleep(60)
        os.kill(os.getpid() if how == "is killed" else os.getppid(), signal.SIGKILL)
        time.sleep(60)
    journal.write(FINISHED, self.request.id)


@app.task(bind=True, name="long_first", acks_late=True)
def long_first(self, seconds):
    """Run for *seconds* the first time, and end at once in a later run."""
    journal.write(STARTED, self.request.id)
    if journal.runs(self.request.id) == 1:
        time.sleep(seconds)
    journal.write(FINISHED, self.request.id)


@app.task(bind=True, name="poison", acks_late=True)
def poison(self):
    """Kill the worker that runs it (in the solo pool, its own process)."""
    journal.write(STARTED, self.request.id)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, name="poison_group", acks_late=True)
def poison_group(self):
    """Kill the worker that runs it, in any pool, by its whole process group."""
    journal.write(STARTED, self.request.id)
    os.killpg(os.getpgrp(), signal.SIGKILL)


@app.task(bind=True, name="reject_first", acks_late=True)
def reject_first(self):
    """Reject itself in the first run, and succeed in a later one."""
    journal.write(STARTED, self.request.id)
    if journal.runs(self.request.id) == 1:
        raise Reject("as told", requeue=False)
    journal.write(FINISHED, self.request.id)


seen_before = []


@app.task(bind=True, name="requeue_first", acks_late=True)
def requeue_first(self, times):
    """Request a requeue *times* times; return the properties of each delivery."""
    request = self.request
    journal.write(STARTED, request.id)
    seen = [
        bool((request.delivery_info or {}).get("redelivered")),
        request.get("x-delivery-count"),
    ]
    seen_before.append(seen)
    if len(seen_before) <= times:
        raise Reject("as told", requeue=True)
    return list(seen_before)


@app.task(bind=True, name="stop_in_answer", acks_late=True, resultrepr_maxsize=100_000)
def stop_in_answer(self):
    """Stop its own process (a prefork child) when half of its result is written."""
    journal.write(STARTED, self.request.id)
    write = Connection._send

    def write_and_stop(connection, data):
        write(connection, data)
        Connection._send = write
        os.kill(os.getpid(), signal.SIGSTOP)

    def once_for_the_result(connection, data):
        # A long message is written in two parts, and the first is its length.
        (write_and_stop if len(data) == _LENGTH else write)(connection, data)

    Connection._send = once_for_the_result
    journal.write(FINISHED, self.request.id)
    return "x" * 50_000
