"""What a task may ask and tell the batch whose job it is, where it runs.

All of it does nothing where no job runs, and raises nothing for a broker that is away: a task
goes on. How it has ended its worker tells (:mod:`reliq.integrations.outcomes`).
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import ReliqError, logger
from ..integrations.job_runs import RUNNING
from ..integrations.outcomes import Membership, adding_to
from ..store.jobs import Note
from ..store.limits import REPORTS_OF_A_JOB
from .batch import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..integrations.job_runs import JobContext

# So often a task that asks again and again asks the broker.
_ASKED_EVERY_S = 1.0
_ASKED = "asked"
# So often a task that says again and again how far it is has it written.
_WRITTEN_EVERY_S = 0.5
# So long nothing more is written after the broker did not take it.
_RESTS_S = 5.0
_UNWRITTEN, _NEXT, _REPORTED = "unwritten", "next", "reported"


def current_batch() -> Batch | None:
    """Return the batch of the job that runs here, or None; asks nothing yet. Close it after use."""
    running = RUNNING.get()
    return None if running is None else Batch.get(running.batch, app=running.app)


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


def progress(done: float, total: float = 0, text: str = "") -> None:
    """Say how far the job that runs here is: *done* of *total*, and what it is at.

    Cheap: written at once, and then at most twice a second; what it has said last is written
    before its end is known, unless its process is killed. Does nothing where no job runs, and
    raises nothing for a broker that is away. Raises TypeError for what are no numbers or no text.
    """
    for name, number in (("done", done), ("total", total)):
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not is_number or (isinstance(number, float) and not isfinite(number)):
            raise TypeError(f"expected {name} to be a number, got: {number!r:.100}")
    _require_text(text)
    running = RUNNING.get()
    if running is None:
        return
    if _UNWRITTEN not in running.local:
        running.local[_UNWRITTEN] = None
        running.at_end.append(partial(_write, running))
    running.local[_UNWRITTEN] = (done, total, text)
    if monotonic() >= running.local.get(_NEXT, 0.0):
        _write(running)


def report(text: str) -> None:
    """Append *text* to what the job that runs here has reported, for people to read.

    At once, one round trip; 500 characters of it are kept, and 20 reports a job. Does nothing
    where no job runs, and raises nothing for a broker that is away. Raises TypeError for what
    is no text.
    """
    _require_text(text)
    running = RUNNING.get()
    if running is None or not text or running.local.get(_REPORTED, 0) >= REPORTS_OF_A_JOB:
        return
    if _write(running, text):
        running.local[_REPORTED] = running.local.get(_REPORTED, 0) + 1


def _require_text(text: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"expected a text, got: {text!r:.100}")


def _write(running: JobContext, text: str = "") -> bool:
    """Write what is to be written of *running*, and a report; whether the broker answered."""
    if not text and running.local[_UNWRITTEN] is None:
        return True
    note = Note(
        running.job,
        running.retries,
        running.token,
        running.queue,
        running.local.get(_UNWRITTEN),
        text,
    )
    try:
        running.store.batches.note(running.batch, note)
    except ReliqError as exc:
        running.local[_NEXT] = monotonic() + _RESTS_S
        logger.warning(
            "batch %s: what its job %s says of itself is not noted: %s",
            running.batch,
            running.job,
            exc,
        )
        return False
    running.local[_NEXT] = monotonic() + _WRITTEN_EVERY_S
    if note.progress is not None:
        running.local[_UNWRITTEN] = None
    return True


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
