"""Subscriptions to queues of a file: who consumes from each, living or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.values import Attached
from .base import StoreBase
from .disk_reserve import essential
from .queues import remove, users

if TYPE_CHECKING:
    from .transaction import Transaction


class SqliteSubscriptions(StoreBase):
    """What a store knows of who consumes from a queue."""

    @essential
    def attach(self, queue: str, consumer: str, subscriptions: int) -> bool:
        """Note who consumes; False when there is no such queue, or no more."""
        with self.write() as transaction:
            if not subscriptions:
                return self._detach(transaction, queue, consumer, 0)
            if transaction.queue(queue) is None:
                return False
            transaction.execute(
                "INSERT OR REPLACE INTO attached VALUES (?, ?, ?, ?, ?)",
                (self._prefix, queue, consumer, subscriptions, self.consumer),
            )
            return True

    @essential
    def drop_consumer(self, queue: str, consumer: str, mark: str, silent_ms: int) -> bool:
        """Take a dead consumer off *queue*, unless its mark is another by now."""
        with self.write() as transaction:
            if self._marks(transaction, queue).get(consumer) != mark:
                return True
            return self._detach(transaction, queue, consumer, silent_ms)

    def _detach(self, transaction: Transaction, queue: str, consumer: str, silent_ms: int) -> bool:
        row = transaction.queue(queue)
        if row is not None:
            self._forget_poison_candidates(transaction, row.id, consumer)
        left = transaction.execute(
            "DELETE FROM attached WHERE prefix = ? AND queue = ? AND consumer = ?",
            (self._prefix, queue, consumer),
        )
        if not left.rowcount or users(transaction, queue) or row is None:
            return True
        if row.auto_delete:
            remove(transaction, queue, row)
            return False
        if row.expires is not None:
            used_at = max(transaction.now - silent_ms, row.used_at or 0)
            transaction.execute("UPDATE queues SET used_at = ? WHERE id = ?", (used_at, row.id))
        return True

    @staticmethod
    def _forget_poison_candidates(transaction: Transaction, queue: int, consumer: str) -> None:
        """Forget the marks of a consumer, but for one that its ended leases are judged by."""
        beginning = f"{consumer}/"
        transaction.execute(
            "DELETE FROM candidates WHERE queue = ? AND substr(consumer, 1, ?) = ? AND NOT EXISTS "
            "(SELECT 1 FROM messages m WHERE m.queue = candidates.queue AND m.tag = candidates.tag "
            "AND m.state = 2 AND m.owner = candidates.consumer)",
            (queue, len(beginning), beginning),
        )

    def _marks(self, transaction: Transaction, queue: str) -> dict[str, str]:
        return {
            consumer: f"{subscriptions} {mark}"
            for consumer, subscriptions, mark in transaction.execute(
                "SELECT consumer, subscriptions, mark FROM attached WHERE prefix = ? AND queue = ?",
                (self._prefix, queue),
            )
        }

    def attached(self, queue: str) -> Attached:
        """Return who consumes from *queue*, and whether it goes by itself."""
        with self.read() as transaction:
            row = transaction.queue(queue)
            temporary = row is not None and bool(row.auto_delete or row.expires is not None)
            return Attached(temporary, self._marks(transaction, queue))

    def consumers_of(self, queue: str) -> list[str]:
        """Return the ids of the consumers of *queue*, dead ones that nobody removed included."""
        with self.read() as transaction:
            found = transaction.execute(
                "SELECT consumer FROM attached WHERE prefix = ? AND queue = ?",
                (self._prefix, queue),
            )
            return sorted(name for (name,) in found)
