"""What operators ask of a file, and change of a queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...message.queue_arguments import FIELDS
from ...store.inspection import Place, Stored
from ...store.limits import BROWSED_AT_ONCE
from ...store.unreadable import number
from .base import StoreBase
from .disk_reserve import essential
from .queues import column_value
from .transaction import DELAYED, HELD_BY_MOVE, READY, UNACKED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .transaction import Transaction

_STATES: dict[Place, int] = {"ready": READY, "delayed": DELAYED, "unacked": UNACKED}


class SqliteOperators(StoreBase):
    """What a store tells and does beside the life of a message."""

    def now_ms(self) -> int:
        """Return the machine's time, in ms since the epoch."""
        return time.time_ns() // 1_000_000

    def pause(self, queue: str, paused: bool) -> bool:
        """Keep *queue* from giving anything out, or let it go on; False: no such queue."""
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return False
            if bool(row.paused) != paused:
                transaction.execute(
                    "UPDATE queues SET paused = ? WHERE id = ?", (int(paused), row.id)
                )
            if not paused:
                # Those who wait were told of nothing that came, or fell due, meanwhile.
                waiting = transaction.execute(
                    "SELECT 1 FROM messages WHERE queue = ? AND state IN (?, ?) LIMIT 1",
                    (row.id, READY, DELAYED),
                ).fetchone()
                if waiting:
                    transaction.notify(queue)
            return True

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

    @essential
    def configure(self, queue: str, changes: Mapping[str, str | None]) -> dict[str, str] | None:
        """Change what transactions know of the arguments of *queue*; None removes a field."""
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
        names = [name for name in FIELDS.values() if name != "partitions"]  # there is one
        row = transaction.execute(
            f"SELECT {', '.join(names)} FROM queues WHERE prefix = ? AND name = ?",  # noqa: S608
            (transaction.prefix, queue),
        ).fetchone()
        if row is None:
            return None
        return {
            name: str(value) for name, value in zip(names, row, strict=True) if value is not None
        }
