"""Dead letters in a file: kept for inspection, replayed, purged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.batches import batches
from ...store.inspection import DeadLetter
from ...store.limits import DAY_US
from ...store.unreadable import number
from .base import StoreBase
from .disk_reserve import essential
from .insert import trim_dead
from .job_events import keep_events
from .redelivery import Back, note_failures
from .transaction import DEAD, READY, UNACKED, rank_score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.values import Lease
    from .transaction import Transaction


def is_moving(transaction: Transaction, queue: int, tag: str) -> bool:
    """Whether a dead letter is on its way elsewhere since less than a day.

    A move's number is the time at which it began, in us.
    """
    row = transaction.execute(
        "SELECT number FROM moves WHERE queue = ? AND tag = ?", (queue, tag)
    ).fetchone()
    return row is not None and transaction.now * 1000 - row[0] <= DAY_US


def is_dead(transaction: Transaction, queue: int, tag: str) -> bool:
    """Whether a message is a dead letter."""
    return (
        transaction.execute(
            "SELECT 1 FROM messages WHERE queue = ? AND tag = ? AND state = ?", (queue, tag, DEAD)
        ).fetchone()
        is not None
    )


def _as_failed(transaction: Transaction, queue: int, tags: Sequence[str]) -> list[Back]:
    """Return how often deliveries of dead letters have failed, and who held them last."""
    rows = (
        transaction.execute(
            "SELECT failed, owner FROM messages WHERE queue = ? AND tag = ?", (queue, tag)
        ).fetchone()
        for tag in tags
    )
    return [Back(tag, failed, 0, owner) for tag, (failed, owner) in zip(tags, rows, strict=True)]


class SqliteDeadLetters(StoreBase):
    """What becomes of messages that were dead-lettered."""

    def dead_letter(
        self, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        """Give up on messages; return the tags that were refused."""
        refused: list[str] = []
        for batch in batches(leases):
            refused += self._dead_letter_some(queue, reason, error, batch)
        return refused

    @essential
    def _dead_letter_some(
        self, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return [lease.tag for lease in leases]
            refused: list[str] = []
            gave_up: list[str] = []
            for lease in leases:
                done = transaction.execute(
                    "UPDATE messages SET state = ?, position = ?, reason = ?, error = ?, "
                    "due = NULL WHERE queue = ? AND tag = ? AND state = ? AND token = ?",
                    (
                        DEAD,
                        transaction.now,
                        reason,
                        error,
                        row.id,
                        lease.tag,
                        UNACKED,
                        int(lease.token),
                    ),
                ).rowcount
                (gave_up if done else refused).append(lease.tag)
            if gave_up:
                keep_events(transaction, row.id, gave_up, "dead", reason, error)
                note_failures(transaction, row.id, reason, _as_failed(transaction, row.id, gave_up))
                transaction.count_deaths(row.id, reason, len(gave_up))
                trim_dead(transaction, row.id, self.options.dead_letter_max)
            return refused

    def dead_letters(
        self, queue: str, limit: int, from_ms: int = 0, envelopes: bool = False
    ) -> list[DeadLetter]:
        """Return up to *limit* that died at *from_ms* or later, oldest first."""
        envelope = "(SELECT e.envelope FROM envelopes e WHERE e.id = m.envelope)"
        columns = (
            f"tag, position, reason, failed, owner, error, {envelope if envelopes else 'NULL'}"
        )
        with self.read() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return []
            found = transaction.execute(
                f"SELECT {columns} FROM messages m WHERE queue = ? AND state = ? "  # noqa: S608
                "AND position >= ? ORDER BY position, tag LIMIT ?",
                (row.id, DEAD, from_ms, limit),
            )
            return [
                DeadLetter(
                    str(tag),
                    number(died),
                    str(reason or ""),
                    number(failed),
                    str(owner or ""),
                    str(error or ""),
                    content if isinstance(content, bytes) else None,
                )
                for tag, died, reason, failed, owner, error, content in found
            ]

    def replay(self, queue: str, tags: Sequence[str]) -> list[str]:
        """Put dead letters back into *queue*, uncounted; return the tags that were.

        They queue behind what is ready at their rank now, and have no TTL any more.
        """
        replayed: list[str] = []
        for batch in batches(tags):
            replayed += self._replay_some(queue, batch)
        return replayed

    @essential
    def _replay_some(self, queue: str, tags: Sequence[str]) -> list[str]:
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return []
            sequence = row.published + row.promoted
            replayed = []
            for tag in tags:
                if is_moving(transaction, row.id, tag):
                    continue
                score = rank_score(tag, sequence + 1)
                back = transaction.execute(
                    "UPDATE messages SET state = ?, position = ?, score = ?, token = 0, "
                    "owner = NULL, failed = NULL, expires = NULL, due = NULL, reason = NULL, "
                    "error = NULL WHERE queue = ? AND tag = ? AND state = ?",
                    (READY, score, score, row.id, tag, DEAD),
                )
                if back.rowcount:
                    sequence += 1
                    replayed.append(tag)
                    transaction.execute(
                        "DELETE FROM moves WHERE queue = ? AND tag = ?", (row.id, tag)
                    )
            if replayed:
                keep_events(transaction, row.id, replayed, "waits")
                size = transaction.sizes(row.id, replayed) if row.max_bytes is not None else 0
                transaction.execute(
                    "UPDATE queues SET promoted = promoted + ?, replayed = replayed + ?, "
                    "waiting_bytes = waiting_bytes + ? WHERE id = ?",
                    (len(replayed), len(replayed), size, row.id),
                )
                transaction.notify(queue)
            return replayed

    def purge_dead(self, queue: str, tags: Sequence[str]) -> int:
        """Remove dead letters for good; return how many."""
        return sum(self._purge_dead_some(queue, batch) for batch in batches(tags))

    @essential
    def _purge_dead_some(self, queue: str, tags: Sequence[str]) -> int:
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return 0
            gone = [
                tag
                for tag in tags
                if is_dead(transaction, row.id, tag) and not is_moving(transaction, row.id, tag)
            ]
            for tag in gone:
                transaction.execute("DELETE FROM moves WHERE queue = ? AND tag = ?", (row.id, tag))
            transaction.drop(row.id, gone)
            if gone:
                transaction.execute(
                    "UPDATE queues SET purged = purged + ? WHERE id = ?", (len(gone), row.id)
                )
            return len(gone)
