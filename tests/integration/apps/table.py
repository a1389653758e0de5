"""The application of examples/task_table.py, with tasks that a test can hold, or that kill."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from examples.task_table import app

app.conf.update(json.loads(os.environ.get("RELIQ_TEST_CONFIG", "{}")))


@app.task(name="hold")
def hold(path):
    """Run until the file exists."""
    while not Path(path).exists():
        time.sleep(0.02)


@app.task(name="explode")
def explode():
    """Raise ValueError."""
    raise ValueError("as told")


@app.task(name="poison")
def poison(path="/"):
    """Kill the whole worker that runs it, once the file exists."""
    hold.run(path)
    os.killpg(os.getpgrp(), signal.SIGKILL)
