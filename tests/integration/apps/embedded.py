"""Celery workers in threads of one program, as in test suites.

Arguments: the pool and the number of workers. The program ends with SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import ExitStack

from celery.contrib.testing.worker import start_worker

from tests.integration.apps.tasks import app

OPTIONS = {"concurrency": 2, "loglevel": "INFO", "perform_ping_check": False}


def main(pool, count):
    """Run *count* workers until SIGTERM."""
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    with ExitStack() as stack:
        for number in range(int(count)):
            name = f"embedded{number}@test"
            stack.enter_context(start_worker(app, hostname=name, pool=pool, **OPTIONS))
        print("embedded ready.")
        end.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
