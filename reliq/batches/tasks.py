"""Functions with which a running task queries and informs its batch.

They have no effect outside a job, and raise nothing for an unreachable broker: the task continues.
The worker reports the end of the job (:mod:`reliq.integrations.outcomes`).
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import ReliqError, logger
from ..integrations.job_runs import RUNNING
from ..values.job_headers import Membership, adding_to
from ..values.limits import REPORTS_OF_A_JOB
from .batch import Batch
from .jobs import Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..integrations.job_runs import JobContext

# Interval between queries to the broker by repeated calls.
_POLL_EVERY_S = 1.0
# Interval between writes of repeated progress.
_WRITTEN_EVERY_S = 0.5
# Pause before the next write after a failed one.
_RESTS_S = 5.0


def current_batch() -> Batch | None:
    """Return the batch of the current job, or None; sends nothing yet. Close it after use."""
    running = RUNNING.get()
    return None if running is None else Batch.get(running.batch, app=running.app)


def cancelled() -> bool:
    """Whether the batch of the current job is cancelled; False outside a job.

    Queries the broker at most once a second. Raises nothing: without a reply, it returns False.
    """
    running, now = RUNNING.get(), monotonic()
    if running is None:
        return False
    if running.cancelled or now < running.asks_at:
        return running.cancelled
    running.asks_at = now + _POLL_EVERY_S
    try:
        record = running.store.batches.batch(running.batch)
    except ReliqError as exc:
        logger.warning("batch %s: could not check for its cancellation: %s", running.batch, exc)
        return False
    running.cancelled = record is not None and record.cancelled_ms > 0
    return running.cancelled


def progress(done: float, total: float = 0, text: str = "") -> None:
    """Report the progress of the current job: *done* of *total*, and the current step.

    The first value is written at once, later ones at most twice a second. The last value is
    written before the end of the job is reported, unless the process is killed. No effect outside
    a job; raises nothing for an unreachable broker. Raises TypeError for invalid arguments.
    """
    for name, number in (("done", done), ("total", total)):
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not is_number or (isinstance(number, float) and not isfinite(number)):
            raise TypeError(f"expected {name} to be a number, got: {number!r:.100}")
    _require_text(text)
    running = RUNNING.get()
    if running is None:
        return
    if not running.at_end:
        running.at_end.append(partial(_write, running))
    running.unwritten = (done, total, text)
    if monotonic() >= running.writes_at:
        _write(running)


def report(text: str) -> None:
    """Append *text* to the messages of the current job, for people to read.

    Written at once, in one round trip. Keeps 20 messages per job, and 500 characters of each. Has
    no effect outside a job or without a reachable broker. Raises TypeError for other types.
    """
    _require_text(text)
    running = RUNNING.get()
    if running is None or not text or running.reported >= REPORTS_OF_A_JOB:
        return
    if _write(running, text):
        running.reported += 1


def _require_text(text: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"expected a text, got: {text!r:.100}")


def _write(running: JobContext, text: str = "") -> bool:
    """Write the pending progress of *running*, and a report; return whether it succeeded."""
    progress = running.unwritten
    if not text and progress is None:
        return True
    note = Note(running.job, running.retries, running.token, running.queue, progress, text)
    try:
        running.store.batches.note(running.batch, note)
    except ReliqError as exc:
        running.writes_at = monotonic() + _RESTS_S
        logger.warning(
            "batch %s: progress or a report of its job %s is not stored: %s",
            running.batch,
            running.job,
            exc,
        )
        return False
    running.writes_at, running.unwritten = monotonic() + _WRITTEN_EVERY_S, None
    return True


@contextmanager
def add_jobs() -> Iterator[None]:
    """Let tasks published in the block join the batch of the current job, even after the seal.

    Outside a job, they join no batch.
    """
    running = RUNNING.get()
    membership = None
    if running is not None:
        membership = Membership(running.batch, running.failures, running.job)
    with adding_to(membership):
        yield
