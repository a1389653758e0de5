"""A web application that publishes a task for each request and is loaded before the fork.

Environment: RELIQ_TEST_BROKER is the broker. RELIQ_TEST_AT_START is the master's action: `ping`
connects to the broker, and `publish` also sends a task.
"""

from __future__ import annotations

import os

from celery import Celery

app = Celery("web", broker=os.environ["RELIQ_TEST_BROKER"], set_as_current=False)
app.conf.task_ignore_result = True
app.conf.result_backend = None

with app.connection_for_write() as connection:
    connection.ensure_connection(max_retries=3)
if os.environ["RELIQ_TEST_AT_START"] == "publish":
    app.send_task("record", (0,))


def application(environ, start_response):
    """Answer with the pid after the task is stored."""
    app.send_task("record", (environ["PATH_INFO"],))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
