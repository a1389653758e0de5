"""The task whose caller waits for its result, and what all tasks of a soak do beside their work.

Celery holds about half a megabyte for each task that asks for a retry (the places of all code
in the traceback, one by one: `billiard.einfo`), in reference cycles. Few of the objects in it
count for Python's collector, so a child runs some hundred such tasks, and grows by 70 MB and more,
before the first full collection; over `redis://` the same. A soak asks what is kept, not what
waits to be collected: so it collects.
"""

from __future__ import annotations

import gc
from itertools import count

from celery.signals import task_postrun

from tests.chaos.app import app

_COLLECTED_EVERY = 200
_tasks = count(1)


@task_postrun.connect(weak=False)
def collect(**_):
    """Collect garbage now and then: 50 ms each time."""
    if next(_tasks) % _COLLECTED_EVERY == 0:
        gc.collect()


@app.task(name="soak.answer", ignore_result=False)
def answer(number):
    """Return it, over `rpc://`."""
    return number
