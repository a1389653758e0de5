"""A worker that counts the Python calls of its main process per task."""

import cProfile
import gc
import json
import os
import pstats
from pathlib import Path

from celery import Celery, signals

FIRST, COUNT = 300, 1000
app = Celery("counted", broker=os.environ["RELIQ_TEST_BROKER"])
app.conf.update(json.loads(os.environ["RELIQ_TEST_CONFIG"]), task_ignore_result=True)
_profile = cProfile.Profile()
_received = 0


@app.task(name="nothing")
def nothing():
    """Do nothing."""


@signals.task_received.connect
def _count(**_):
    global _received  # noqa: PLW0603 - the worker is this module's only user
    _received += 1
    if _received == FIRST:
        gc.disable()
        _profile.enable()
    elif _received == FIRST + COUNT:
        _profile.disable()
        stats = pstats.Stats(_profile)
        ours = sum(of[1] for (file, *_), of in stats.stats.items() if "/reliq/" in file)
        written = Path(os.environ["RELIQ_TEST_COUNTS"])
        written.with_suffix(".new").write_text(
            json.dumps([stats.total_calls / COUNT, ours / COUNT])
        )
        written.with_suffix(".new").rename(written)
