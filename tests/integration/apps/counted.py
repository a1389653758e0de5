"""A worker that counts the Python calls and the loop's turns of its main process, per task."""

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
        ours = {key: of[1] for key, of in stats.stats.items() if "/reliq/" in key[0]}
        turns = sum(count for (_, _, name), count in ours.items() if name == "on_tick")
        written = Path(os.environ["RELIQ_TEST_COUNTS"])
        written.with_suffix(".new").write_text(
            json.dumps([n / COUNT for n in (stats.total_calls, sum(ours.values()), turns)])
        )
        written.with_suffix(".new").rename(written)
