"""What operators see of the messages in a file, and what they change of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...message.delivery_tag import published_ms
from ...message.queue_arguments import FIELDS
from ...store.inspection import Place, Stored
from ...store.limits import BROWSED_AT_ONCE, HIGHEST_RANK, RANK
from ...store.unreadable import number
from .base import DELAYED, HELD_BY_MOVE, READY, UNACKED, StoreBase
from .disk_reserve import essential
from .topology import column_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .base import Transaction

_STATES: dict[Place, int] = {"ready": READY, "delayed": DELAYED, "unacked": UNACKED}


def heads(transaction: Transaction, queue: int) -> Iterator[tuple[int, str]]:
    """Yield (rank, tag) of the ready message that is first at its rank, for each rank."""
    least = 0
    for _ in range(HIGHEST_RANK + 1):
        head = transaction.execute(
            "SELECT tag, position FROM messages WHERE queue = ? AND state = ? "
            "AND position >= ? ORDER BY position LIMIT 1",
            (queue, READY, least),
        ).fetchone()
        if head is None:
            return
        tag, position = head
        rank = position // RANK
        yield rank, tag
        least = (rank + 1) * RANK


class SqliteReading(StoreBase):
    """What a store shows, and changes, without touching a message."""

    def browse(self, queue: str, place: Place, limit: int, skip: int = 0) -> list[Stored]:
        """Return up to *limit* messages of *place* after *skip*, without touching them."""
        with self.read() as transaction:
            row = transaction.queue(queue)
            if row is None or limit <= 0:
                return []
            found = transaction.execute(
                "SELECT m.tag, m.position, e.envelope, m.owner, m.failed FROM messages m "
                "JOIN envelopes e ON e.id = m.envelope WHERE m.queue = ? AND m.state = ? "
                "ORDER BY m.position, m.tag LIMIT ? OFFSET ?",
                (row.id, _STATES[place], min(limit, BROWSED_AT_ONCE), skip),
            )
            return [
                Stored(
                    str(tag),
                    envelope if isinstance(envelope, bytes) else b"",
                    -1 if failed is None else number(failed),
                    # What is on its way to another broker has a lease without an end.
                    0 if place == "ready" or position == HELD_BY_MOVE else number(position),
                    str(owner or "") if place == "unacked" else "",
                )
                for tag, position, envelope, owner, failed in found
            ]

    def oldest_ms(self, queue: str) -> int | None:
        """Return when the oldest ready message was published; None where nothing is ready."""
        with self.read() as transaction:
            row = transaction.queue(queue)
            found = [] if row is None else list(heads(transaction, row.id))
        return min(filter(None, (published_ms(tag) for _, tag in found)), default=None)

    @essential
    def configure(self, queue: str, changes: Mapping[str, str | None]) -> dict[str, str] | None:
        """Change what steps know of the arguments of *queue*; None removes a field."""
        if not changes:
            with self.read() as transaction:
                return self._settings(transaction, queue)
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return None
            for field, value in changes.items():
                name = next(known for known in FIELDS.values() if known == field)
                transaction.execute(
                    f"UPDATE queues SET {name} = ? WHERE id = ?",  # noqa: S608 - a known name
                    (column_value(name, value), row.id),
                )
            if "expires" in changes:  # it counts from now: its use was not noted before
                transaction.execute(
                    "UPDATE queues SET used_at = ? WHERE id = ?", (transaction.now, row.id)
                )
            return self._settings(transaction, queue)

    @staticmethod
    def _settings(transaction: Transaction, queue: str) -> dict[str, str] | None:
        names = list(FIELDS.values())
        row = transaction.execute(
            f"SELECT {', '.join(names)} FROM queues WHERE prefix = ? AND name = ?",  # noqa: S608
            (transaction.prefix, queue),
        ).fetchone()
        if row is None:
            return None
        return {
            name: str(value) for name, value in zip(names, row, strict=True) if value is not None
        }
