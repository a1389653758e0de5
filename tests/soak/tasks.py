"""The task whose caller waits for its result, and the garbage collection of a soak's workers.

Celery holds about half a megabyte for each retried task (the places of all code in the traceback,
one by one: `billiard.einfo`), in reference cycles. Few of their objects count for Python's
collector. A child therefore runs some hundred such tasks, and grows by 70 MB and more, before the
first full collection; over `redis://` it does the same. A soak measures retained memory, not memory
that waits for a collection, so its workers collect.
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
    """Collect garbage regularly, which takes 50 ms each time."""
    if next(_tasks) % _COLLECTED_EVERY == 0:
        gc.collect()


@app.task(name="soak.answer", ignore_result=False)
def answer(number):
    """Return the number, over `rpc://`."""
    return number
