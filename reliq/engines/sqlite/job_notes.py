"""What becomes of what a job says while it runs, within one transaction of a file.

The rules are those of ``note_job.lua``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.jobs import LETTERS, OPEN
from ...store.limits import REPORTS_KEPT, REPORTS_OF_A_JOB

if TYPE_CHECKING:
    from ...store.jobs import Note
    from .transaction import Transaction


def noted(transaction: Transaction, batch: int, note: Note) -> bool:
    """Note what an open job of the batch of that number says; whether it is noted."""
    if not _is_heard(transaction, batch, note):
        return False
    row = transaction.execute(
        "SELECT reported FROM job_notes WHERE batch = ? AND id = ?", (batch, note.job)
    ).fetchone()
    reported = 0 if row is None else int(row[0])
    reports = bool(note.report) and reported < REPORTS_OF_A_JOB
    if note.progress is None and not reports:
        return False
    transaction.execute(
        "INSERT INTO job_notes (batch, id, reported) VALUES (?, ?, ?) "
        "ON CONFLICT (batch, id) DO UPDATE SET reported = excluded.reported",
        (batch, note.job, reported + reports),
    )
    if note.progress is not None:
        transaction.execute(
            "UPDATE job_notes SET at = ?, done = ?, total = ?, text = ? WHERE batch = ? AND id = ?",
            (transaction.now, *note.progress, batch, note.job),
        )
    if reports:
        transaction.execute(
            "INSERT INTO job_reports (batch, job, at, text) VALUES (?, ?, ?, ?)",
            (batch, note.job, transaction.now, note.report),
        )
        transaction.execute(
            "DELETE FROM job_reports WHERE batch = ? AND number <= (SELECT number FROM "
            "job_reports WHERE batch = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (batch, batch, REPORTS_KEPT),
        )
    return True


def _is_heard(transaction: Transaction, batch: int, note: Note) -> bool:
    """Whether the job is open, and no later delivery of it is known."""
    row = transaction.execute(
        "SELECT state, retries, token, queue FROM jobs WHERE batch = ? AND id = ?",
        (batch, note.job),
    ).fetchone()
    if row is None:
        return False
    state, retries, token, queue = row
    if LETTERS.get(state) not in OPEN or not isinstance(retries, int) or note.retries < retries:
        return False
    return not (note.retries == retries and note.queue == queue and note.token < token)
