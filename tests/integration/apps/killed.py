"""Jobs in processes that kill themselves at a named point, once; and who looks for them is quick.

RELIQ_TEST_KILL: "module:name of a function in it:before or after:how many calls there were", and
then which process of a worker it is: "parent", "child", or "" for any; RELIQ_TEST_KILLED is the
file that says that it was done. ``python -m tests.integration.apps.killed`` publishes a batch.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from functools import wraps
from pathlib import Path

from reliq.batches import Batch
from reliq.consumer import batch_passes, lost_jobs
from reliq.failover import failback
from tests.integration.apps.jobs import app

__all__ = ["app"]

JOBS = 5
batch_passes._EVERY_S = 0.3
batch_passes._AGAIN_MS = 200
batch_passes._SWEPT_EVERY_S = 0.3
lost_jobs.LostJobs.sweep.__defaults__ = (1500,)
failback._SWEPT_EVERY_S = 1.0

_first = os.getpid()
_calls = [0]


def _kill_at(point: str) -> None:
    """Have the function of *point* kill its process."""
    module, path, when, number, who = point.split(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    def is_it() -> bool:
        if who and (who == "parent") != (os.getpid() == _first):
            return False
        _calls[0] += 1
        return _calls[0] == int(number)

    def kill() -> None:
        try:
            Path(os.environ["RELIQ_TEST_KILLED"]).touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    @wraps(function)
    def killing(*args, **kwargs):
        now = is_it()
        if now and when == "before":
            kill()
        found = function(*args, **kwargs)
        if now and when == "after":
            kill()
        return found

    setattr(owner, name, killing)


if os.environ.get("RELIQ_TEST_KILL"):
    _kill_at(os.environ["RELIQ_TEST_KILL"])


def publish(id_: str, task: str, how: str) -> None:
    """Publish a batch of that id."""
    options = app.conf.broker_transport_options
    callbacks = {
        f"on_{what}": app.signature("report", (what,))
        for what in ("success", "complete", "failure")
    }
    url = os.environ["RELIQ_TEST_BROKER"]
    with Batch("killed", url=url, transport_options=options, id=id_, seal_timeout=2, **callbacks):
        for _ in range(JOBS):
            app.send_task(task, (how,), queue="celery")


if __name__ == "__main__":
    publish(*sys.argv[1:])
