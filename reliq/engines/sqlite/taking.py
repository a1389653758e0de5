"""Which of the ready messages one reserve takes, inside its transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.limits import BATCH, ROUNDS
from ...store.values import RESERVED_BYTES
from .expiring import expire
from .transaction import rank_score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .isolating import Isolating
    from .transaction import Row, Transaction

SELECT = (
    "SELECT id, published, promoted, token, notification, paused, lease, expires, delivery_limit, "
    "dead_expired, max_bytes FROM queues WHERE prefix = ? AND name = ?"
)
"""What a reserve wants to know of the queue."""
_TAKE = (
    "SELECT m.tag, m.failed, m.expires, e.envelope, m.position, m.envelope FROM messages m "
    "JOIN envelopes e ON e.id = m.envelope WHERE m.queue = ? AND m.state = 0 AND m.position > ? "
    "ORDER BY m.position LIMIT ?"
)


def size_of(row: Row) -> int:
    """Return how large the envelope of a row is; what is none comes, and is dead-lettered."""
    return len(row[3]) if isinstance(row[3], (bytes, str)) else 0


class Taking:
    """One reserve."""

    def __init__(self, transaction: Transaction, row: Row) -> None:
        self.transaction = transaction
        self.queue, self.published, self.promoted = row[:3]
        self.dead_expired, self.counts_bytes = row[9], row[10] is not None
        self.bytes = 0
        self.events = 0
        """So many lease tokens were taken by what has expired."""
        self.room = RESERVED_BYTES

    def expire(self, tags: Sequence[str]) -> None:
        """Remove expired messages, or dead-letter them where the queue says so."""
        if self.counts_bytes:
            self.bytes += self.transaction.sizes(self.queue, tags)
        self.events += expire(self.transaction, self.queue, tags, self.dead_expired)

    def promote(self) -> int:
        """Make ready what is due; return the ms until more is, or -1."""
        transaction = self.transaction
        due = transaction.execute(
            "SELECT tag, position FROM messages WHERE queue = ? AND state = 1 "
            "ORDER BY position, tag LIMIT ?",
            (self.queue, BATCH + 1),
        ).fetchall()
        if not due:
            return -1
        late = [tag for tag, position in due[:BATCH] if position <= transaction.now]
        if late:
            # Behind what is ready at its rank now.
            sequence = self.published + self.promoted
            places = ((rank_score(tag, sequence + i), tag) for i, tag in enumerate(late, 1))
            transaction.executemany(
                "UPDATE messages SET state = 0, position = ?, score = ? "
                "WHERE queue = ? AND tag = ?",
                [(score, score, self.queue, tag) for score, tag in places],
            )
            transaction.execute(
                "UPDATE queues SET promoted = promoted + ? WHERE id = ?", (len(late), self.queue)
            )
        return max(due[len(late)][1] - transaction.now, 0) if len(late) < len(due) else -1

    def any_ready(self) -> bool:
        """Whether any message is ready."""
        return (
            self.transaction.execute(
                "SELECT 1 FROM messages WHERE queue = ? AND state = 0 LIMIT 1", (self.queue,)
            ).fetchone()
            is not None
        )

    def _page(self, after: int, n: int, some: bool) -> tuple[list[Row], bool, bool]:
        """Return up to *n* of the ready: (rows, whether more are left, for want of room).

        No more than there is room for, but one unless there are *some* already. Rows are
        read one by one: hundreds of large envelopes are not to be here at once.
        """
        rows: list[Row] = []
        found = self.transaction.execute(_TAKE, (self.queue, after, n + 1))
        for row in found:
            if len(rows) == n:
                found.close()
                return rows, True, False
            size = size_of(row)
            if size > self.room and (some or rows):
                found.close()
                return rows, True, True
            self.room -= size
            rows.append(row)
        return rows, False, False

    def take(self, n: int, isolating: Isolating) -> tuple[list[Row], bool, bool]:
        """Choose up to *n* of the ready: (rows, whether some were passed over, more left)."""
        if not isolating.open:
            return [], True, isolating.others_wait()
        if (row := isolating.claimed_row()) is not None:
            return self._unexpired([row]), False, isolating.others_wait()
        taken: list[Row] = []
        passed, after = 0, -1
        for _ in range(ROUNDS):
            rows, more, cut = self._page(after, n - len(taken), bool(taken))
            for row in rows:
                after = row[4]
                if isolating.may_take(row[0], row[1] or 0, first=not taken):
                    taken.append(row)
                else:
                    passed += 1
                if isolating.isolated is not None:
                    return self._unexpired(taken), False, isolating.others_wait()
            # Look a little further for what may be taken beside a poison candidate.
            if len(taken) == n or not more or not passed or (cut and taken):
                break
        isolating.claim_what_waits()
        blocked = passed > 0 and (not taken or (len(taken) < n and not cut))
        return self._unexpired(taken), blocked, more or passed > 0

    def _unexpired(self, taken: list[Row]) -> list[Row]:
        """Let those go that have expired: the look before was bounded."""
        gone = [row[0] for row in taken if row[2] is not None and row[2] <= self.transaction.now]
        if gone:
            self.expire(gone)
        return [row for row in taken if row[2] is None or row[2] > self.transaction.now]
