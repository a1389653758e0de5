"""What became of jobs, in a file: kept by the transactions that do it, until batches are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ...message.delivery_tag import is_of_job
from ...message.envelope import without_body
from ...store.jobs import JobEvent
from ...store.unreadable import number
from .base import StoreBase
from .disk_reserve import essential

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .transaction import Transaction


def keep_events(
    transaction: Transaction,
    queue: int,
    tags: Iterable[str],
    what: Literal["dead", "gone", "waits"],
    reason: str = "",
    error: str = "",
) -> int:
    """Keep what has become of those of *tags* that are jobs; return how many they were.

    While their messages are still there. An event's number is one of the lease tokens: what
    was delivered before has a lower one.
    """
    jobs = [tag for tag in tags if is_of_job(tag)]
    for tag in jobs:
        row = transaction.execute(
            "SELECT e.envelope FROM messages m JOIN envelopes e ON e.id = m.envelope "
            "WHERE m.queue = ? AND m.tag = ?",
            (queue, tag),
        ).fetchone()
        envelope = without_body(row[0]) if row and isinstance(row[0], bytes) else b""
        transaction.execute(
            "UPDATE queues SET token = token + 1, job_events = job_events + 1 WHERE id = ?",
            (queue,),
        )
        transaction.execute(
            "INSERT INTO job_events SELECT id, token, ?, ?, ?, ?, ? FROM queues WHERE id = ?",
            (what, tag, reason, error, envelope, queue),
        )
    return len(jobs)


class SqliteJobEvents(StoreBase):
    """The events of jobs."""

    def job_events(self, queue: str, limit: int, after: int = 0) -> list[JobEvent]:
        """Return up to *limit* events of jobs of *queue*, in order."""
        with self.read() as transaction:
            found = transaction.execute(
                "SELECT e.number, e.what, e.tag, e.reason, e.error, e.envelope "
                "FROM queues q JOIN job_events e ON e.queue = q.id "
                "WHERE q.prefix = ? AND q.name = ? AND e.number > ? ORDER BY e.number LIMIT ?",
                (transaction.prefix, queue, after, limit),
            ).fetchall()
        return [
            JobEvent(
                number(at),
                what if what in {"dead", "waits"} else "gone",
                str(tag),
                str(reason),
                str(error),
                envelope if isinstance(envelope, bytes) else b"",
            )
            for at, what, tag, reason, error, envelope in found
        ]

    @essential
    def forget_job_events(self, queue: str, numbers: Sequence[int]) -> None:
        """Remove events of which the batches have been told."""
        with self.write() as transaction:
            transaction.executemany(
                "DELETE FROM job_events WHERE number = ? AND queue = "
                "(SELECT id FROM queues WHERE prefix = ? AND name = ?)",
                [(one, transaction.prefix, queue) for one in numbers],
            )
