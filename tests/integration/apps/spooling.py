"""A publisher that sends short tasks until SIGTERM, and records the confirmed ones."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.utils.uuid import uuid

from reliq.errors import ReliqError
from tests.support.journal import Journal


def main(broker: str, path: str, pause_s: str) -> None:
    """Send a task to *broker* after each pause; write the ids to the journal at *path*."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    journal = Journal(path)
    app = Celery("publisher", broker=broker, set_as_current=False)
    app.conf.update(json.loads(os.environ["RELIQ_TEST_CONFIG"]))
    while not stop.wait(float(pause_s)):
        task = uuid()
        try:
            app.send_task("record_late", (0.005,), task_id=task)
        except (OperationalError, ReliqError) as exc:
            journal.write("refused", task)
            print(exc, flush=True)
        else:
            journal.write("confirmed", task)
    print("done", flush=True)


main(*sys.argv[1:])
