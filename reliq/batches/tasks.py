"""What a task may ask and tell the batch whose job it is, where it runs.

All of it does nothing where no job runs, and raises nothing for a broker that is away: a task
goes on. How it has ended its worker tells (:mod:`reliq.integrations.outcomes`).
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import ReliqError
from ..integrations.job_runs import RUNNING
from ..integrations.outcomes import Membership, adding_to

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("reliq")

# So often a task that asks again and again asks the broker.
_ASKED_EVERY_S = 1.0
_ASKED = "asked"


def cancelled() -> bool:
    """Whether the batch of the job that runs here is cancelled; False where none runs.

    Asks the broker at most once a second. Raises nothing: an answer that does not come is no.
    """
    running = RUNNING.get()
    if running is None:
        return False
    last, now = running.local.get(_ASKED), monotonic()
    if last is True:
        return True
    if last is not None and now - last < _ASKED_EVERY_S:
        return False
    running.local[_ASKED] = now
    try:
        record = running.store.batches.batch(running.batch)
    except ReliqError as exc:
        logger.warning("batch %s: whether it is cancelled is not known: %s", running.batch, exc)
        return False
    if record is not None and record.cancelled_ms:
        running.local[_ASKED] = True
        return True
    return False


@contextmanager
def add_jobs() -> Iterator[None]:
    """Let the tasks that the block publishes be jobs of the batch of the job that runs here.

    Also of one that is sealed. Where no job runs they are no jobs.
    """
    running = RUNNING.get()
    membership = None
    if running is not None:
        membership = Membership(running.batch, running.failures, running.job)
    with adding_to(membership):
        yield
