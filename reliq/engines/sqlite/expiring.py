"""Expiring: messages that have waited beyond their time to live, inside a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.limits import BATCH
from .job_events import keep_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .transaction import Transaction


def count_down_bytes(transaction: Transaction, queue: int, size: int) -> None:
    """Note that so many bytes wait no more; what came before the limit was never counted."""
    transaction.execute(
        "UPDATE queues SET waiting_bytes = max(waiting_bytes - ?, 0) WHERE id = ?", (size, queue)
    )


def overdue(transaction: Transaction, queue: int, most: int = BATCH) -> list[str]:
    """Return up to *most* messages that have expired and wait, the oldest first."""
    found = transaction.execute(
        "SELECT tag FROM messages INDEXED BY expiries WHERE queue = ? AND expires <= ? "
        "AND expires IS NOT NULL AND state < 2 ORDER BY expires LIMIT ?",
        (queue, transaction.now, most),
    ).fetchall()
    return [tag for (tag,) in found]


def expire(
    transaction: Transaction, queue: int, tags: Sequence[str], dead_expired: int | None
) -> int:
    """Remove expired messages, or dead-letter them where the queue says so; their bytes are not.

    Returns how many lease tokens that took.
    """
    events = keep_events(transaction, queue, tags, "dead" if dead_expired else "gone", "expired")
    if dead_expired:
        transaction.executemany(
            "UPDATE messages SET state = 3, position = ?, "
            "reason = 'expired', owner = '', error = '' WHERE queue = ? AND tag = ?",
            [(transaction.now, queue, tag) for tag in tags],
        )
        transaction.count_deaths(queue, "expired", len(tags))
    else:
        transaction.drop(queue, tags)
        transaction.execute(
            "UPDATE queues SET expired = expired + ? WHERE id = ?", (len(tags), queue)
        )
    return events
