"""Redelivery: what a failed delivery makes of a message, inside a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...store.limits import FAILURES_KEPT
from .job_events import keep_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .transaction import QueueRow, Transaction


class Back(NamedTuple):
    """A message that goes back, with its count of failed deliveries."""

    tag: str
    failed: int | None
    wait_ms: int
    owner: str


def limit_of(queue: QueueRow, limit: int) -> int:
    """Return the delivery limit of *queue*: its own, or *limit*, which the options say."""
    return limit if queue.delivery_limit is None else queue.delivery_limit


def backoff(backoff_ms: Sequence[int], count: int) -> int:
    """Return how long a message waits after *count* failures; (0, 0): not at all."""
    least, most = backoff_ms
    return min(least * 2 ** (min(count, 64) - 1), most) if count > 0 else 0


def dead_letter(transaction: Transaction, queue: int, died: Sequence[Back], error: str) -> None:
    """Give up on messages that have reached their delivery limit."""
    tags = [item.tag for item in died]
    keep_events(transaction, queue, tags, "dead", "delivery_limit", error)
    transaction.executemany(
        "UPDATE messages SET state = 3, position = ?, failed = ?, owner = ?, "
        "reason = 'delivery_limit', error = ? WHERE queue = ? AND tag = ?",
        [(transaction.now, item.failed, item.owner, error, queue, item.tag) for item in died],
    )
    transaction.count_deaths(queue, "delivery_limit", len(died))


def note_failures(transaction: Transaction, queue: int, how: str, failed: Sequence[Back]) -> None:
    """Keep failed deliveries, of which a queue has the last ones."""
    if not failed:
        return
    transaction.executemany(
        "INSERT INTO failed_deliveries (queue, tag, at, how, failed, consumer) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        [
            (queue, item.tag, transaction.now, how, item.failed or 0, item.owner or "")
            for item in failed
        ],
    )
    transaction.execute(
        "DELETE FROM failed_deliveries WHERE queue = :queue AND number <= "
        "(SELECT number FROM failed_deliveries WHERE queue = :queue "
        "ORDER BY number DESC LIMIT 1 OFFSET :kept)",
        {"queue": queue, "kept": FAILURES_KEPT},
    )


def put_back(transaction: Transaction, queue: QueueRow, returned: Sequence[Back]) -> None:
    """Return messages to their old place, or let them wait; what counts it is the caller's."""
    transaction.executemany(
        "UPDATE messages SET state = ?, position = ifnull(?, score), failed = ?, owner = NULL, "
        "token = 0 WHERE queue = ? AND tag = ?",
        [
            (
                1 if item.wait_ms else 0,
                transaction.now + item.wait_ms if item.wait_ms else None,
                item.failed,
                queue.id,
                item.tag,
            )
            for item in returned
        ],
    )
    if queue.max_bytes is not None and returned:
        transaction.execute(
            "UPDATE queues SET waiting_bytes = waiting_bytes + ? WHERE id = ?",
            (transaction.sizes(queue.id, [item.tag for item in returned]), queue.id),
        )
