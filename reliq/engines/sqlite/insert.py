"""Inserting: one message after another into one queue, inside a transaction.

Owns what a queue says of that: numbers that are known, limits, times to live, and
whose turn it becomes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.limits import BATCH, MOVES_KEPT_MS, RANK
from ...store.values import DUPLICATE, FULL, STORED
from .expiring import expire, overdue
from .job_events import keep_events
from .publish_sequence import SequenceSet
from .transaction import DEAD, DELAYED, READY
from .unconfirmed import hold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.values import Publication
    from .transaction import Transaction

_INSERT = (
    "INSERT INTO messages (queue, tag, state, position, score, failed, expires, envelope) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
SELECT = (
    "SELECT id, published, promoted, notification, message_ttl, max_length, max_bytes, overflow, "
    "waiting_bytes, dead_expired FROM queues WHERE prefix = ? AND name = ?"
)
"""What an insert wants to know of the queue."""


def put(
    transaction: Transaction,
    queue: int,
    tag: str,
    envelope: bytes,
    score: int,
    due: int = 0,
    expires: int | None = None,
    failed: int | None = None,
) -> int:
    """Store a message among the ready, or (*due*) the delayed; return its envelope's id.

    What counts it is the caller's; *score* is its place among the ready.
    """
    stored = transaction.execute(
        "INSERT INTO envelopes (envelope) VALUES (?)", (envelope,)
    ).lastrowid
    assert stored is not None  # noqa: S101 - after an INSERT
    place = (DELAYED, due, None) if due else (READY, score, score)
    transaction.execute(_INSERT, (queue, tag, *place, failed, expires, stored))
    return stored


def waiting_in(transaction: Transaction, queue: int, most: int) -> int:
    """Return how many messages wait (ready or delayed), as far as *most*."""
    total = 0
    for state in (READY, DELAYED):
        total += transaction.execute(
            "SELECT count(*) FROM (SELECT 1 FROM messages WHERE queue = ? AND state = ? LIMIT ?)",
            (queue, state, most),
        ).fetchone()[0]
    return total


def trim_dead(transaction: Transaction, queue: int, dead_letter_max: int) -> int:
    """Keep the stated cap of the dead letters: the oldest leave, counted; return how many."""
    (dead,) = transaction.execute(
        "SELECT count(*) FROM messages WHERE queue = ? AND state = ?", (queue, DEAD)
    ).fetchone()
    over = min(dead - dead_letter_max, BATCH)
    if over > 0:
        surplus = transaction.execute(
            "SELECT tag FROM messages WHERE queue = ? AND state = ? ORDER BY position, tag LIMIT ?",
            (queue, DEAD, over),
        ).fetchall()
        transaction.drop(queue, [tag for (tag,) in surplus])
        transaction.execute("UPDATE queues SET dropped = dropped + ? WHERE id = ?", (over, queue))
    return max(int(over), 0)


def earliest(transaction: Transaction, queue: int) -> tuple[int, str]:
    """Return when the first delayed message is due, and its tag."""
    found = transaction.execute(
        "SELECT position, tag FROM messages WHERE queue = ? AND state = ? "
        "ORDER BY position, tag LIMIT 1",
        (queue, DELAYED),
    ).fetchone()
    return (2**62, "") if found is None else (int(found[0]), str(found[1]))


class Known:
    """The numbers of one publisher in one queue, within a transaction."""

    def __init__(self, transaction: Transaction, queue: str, publisher: str) -> None:
        self._transaction, self._place = transaction, (transaction.prefix, queue, publisher)
        found = transaction.execute(
            "SELECT low_water, numbers FROM publishers "
            "WHERE prefix = ? AND queue = ? AND publisher = ? AND until > ?",
            (*self._place, transaction.now),
        ).fetchone()
        self.low_water = found[0] if found else 0
        self.numbers = SequenceSet(found[1] if found else "")

    def __contains__(self, number: int) -> bool:
        """Whether *number* was stored before."""
        # One below low: the request was held back until its retry had returned.
        return number < self.low_water or number in self.numbers

    def keep(self, low_water: int, keep_ms: int) -> None:
        """Store them, but for what is settled."""
        if low_water:
            self.numbers.forget_below(low_water)
            self.low_water = max(self.low_water, low_water)
        self._transaction.execute(
            "INSERT INTO publishers VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (prefix, queue, publisher) DO UPDATE SET "
            "low_water = excluded.low_water, numbers = excluded.numbers, "
            "until = max(until, excluded.until)",
            (*self._place, self.low_water, str(self.numbers), self._transaction.now + keep_ms),
        )


class Limits:
    """The limits of one queue within a transaction."""

    def __init__(
        self, transaction: Transaction, queue: int, row: tuple[int | str | None, ...]
    ) -> None:
        length, size, overflow, waiting_bytes, dead_expired = row
        self.limited = length is not None or size is not None
        self.rejects = overflow == "reject-publish"
        self.counts_bytes = size is not None
        self.max_length = int(length) if length is not None else 2**62
        self.max_bytes = int(size) if size is not None else 2**62
        self.bytes = int(waiting_bytes or 0)
        self.waiting = 0
        self._transaction, self._queue = transaction, queue
        self._dead_expired = int(dead_expired or 0)
        if self.limited:
            self.waiting = waiting_in(transaction, queue, self.max_length + BATCH)

    def make_room(self, items: Sequence[Publication]) -> None:
        """Let what has expired leave first, where *items* would not all be within the limits."""
        more = sum(len(item.envelope) for item in items)
        if not self.limited or (
            self.waiting + len(items) <= self.max_length and self.bytes + more <= self.max_bytes
        ):
            return
        transaction, queue = self._transaction, self._queue
        if not (expired := overdue(transaction, queue)):
            return
        self.waiting -= len(expired)
        if self.counts_bytes:
            self.bytes = max(self.bytes - transaction.sizes(queue, expired), 0)
            transaction.execute(
                "UPDATE queues SET waiting_bytes = ? WHERE id = ?", (self.bytes, queue)
            )
        expire(transaction, queue, expired, self._dead_expired)

    def full_for(self, envelope: bytes) -> bool:
        """Whether one more message is refused."""
        return self.rejects and (
            self.waiting + 1 > self.max_length or self.bytes + len(envelope) > self.max_bytes
        )

    def drop_head(self, died_ms: int) -> int:
        """Let the oldest of the lowest priority give way to the dead letters; return how many."""
        transaction, queue, dropped = self._transaction, self._queue, 0
        if not self.limited or self.rejects:
            return 0
        while dropped < BATCH and (self.waiting > self.max_length or self.bytes > self.max_bytes):
            victim = self._victim()
            if victim is None:
                break
            if self.counts_bytes:
                self.bytes -= transaction.sizes(queue, [victim])
            keep_events(transaction, queue, [victim], "dead", "maxlen")
            transaction.execute(
                "UPDATE messages SET state = ?, position = ?, "
                "reason = 'maxlen', owner = '', error = '' WHERE queue = ? AND tag = ?",
                (DEAD, died_ms, queue, victim),
            )
            self.waiting -= 1
            dropped += 1
        return dropped

    def _victim(self) -> str | None:
        transaction, queue = self._transaction, self._queue
        last = transaction.execute(
            "SELECT max(position) FROM messages WHERE queue = ? AND state = ?", (queue, READY)
        ).fetchone()[0]
        state, least = (DELAYED, 0) if last is None else (READY, last // RANK * RANK)
        row = transaction.execute(
            "SELECT tag FROM messages WHERE queue = ? AND state = ? AND position >= ? "
            "ORDER BY position, tag LIMIT 1",
            (queue, state, least),
        ).fetchone()
        return None if row is None else str(row[0])


class Insert:
    """Publications that differ in nothing but the message, on their way into one queue."""

    def __init__(
        self, transaction: Transaction, row: tuple[int, ...], items: Sequence[Publication]
    ) -> None:
        first = items[0]
        self._transaction, self._first = transaction, first
        self._queue, published, promoted, self._notification, self._ttl_ms = row[:5]
        self._limits = Limits(transaction, self._queue, row[5:])
        self._limits.make_room(items)
        self._known = Known(transaction, first.queue, first.publisher) if first.number else None
        # Publishing and promoting both move the sequence on, so it never repeats.
        self._before = self._sequence = published + promoted
        self._notified = False
        self._earliest: tuple[int, str] | None = None

    def add(self, item: Publication) -> int:
        """Store one message; return what became of it."""
        known = self._known
        full = self._limits.full_for(item.envelope)
        if known is not None and item.number in known:
            return DUPLICATE
        if full:
            return FULL
        if known is not None:
            known.numbers.add(item.number)
        self._store(item)
        return STORED

    def _store(self, item: Publication) -> None:
        transaction, queue = self._transaction, self._queue
        due = transaction.now + item.delay_ms if item.delay_ms > 0 else 0
        ttl = item.ttl_ms
        if self._ttl_ms is not None and (ttl < 0 or self._ttl_ms < ttl):
            ttl = self._ttl_ms
        expires = None if ttl < 0 else transaction.now + item.delay_ms + ttl
        self._sequence += 1
        score = item.rank * RANK + self._sequence
        if not item.unconfirmed:
            self._notified = self._notified or not due or self._first_due(due, item.tag)
        put(transaction, queue, item.tag, item.envelope, score, due, expires)
        if item.unconfirmed:
            hold(transaction, queue, item.tag, item.publisher, item.number)
            return
        self._limits.waiting += 1
        self._limits.bytes += len(item.envelope)

    def _first_due(self, due: int, tag: str) -> bool:
        """Whether it becomes the earliest: only that changes how long anyone may sleep."""
        if self._earliest is None:
            self._earliest = earliest(self._transaction, self._queue)
        if (due, tag) > self._earliest:
            return False
        self._earliest = (due, tag)
        return True

    def finish(self, items: Sequence[Publication], dead_letter_max: int, keep_ms: int) -> None:
        """Count what was stored, remember its numbers, keep the limits, and notify."""
        transaction, new = self._transaction, self._sequence - self._before
        # Where nothing is new, too: what was replayed may have put it above its limits.
        dropped = self._limits.drop_head(transaction.now)
        if not new and not dropped:
            return
        if new and self._known is not None:
            keep = MOVES_KEPT_MS if self._first.moved else keep_ms
            self._known.keep(max(item.low_water for item in items), keep)
        transaction.execute(
            "UPDATE queues SET published = published + ?, waiting_bytes = ? WHERE id = ?",
            (new, self._limits.bytes if self._limits.counts_bytes else 0, self._queue),
        )
        if dropped:
            transaction.count_deaths(self._queue, "maxlen", dropped)
            trim_dead(transaction, self._queue, dead_letter_max)
        if self._notified and not self._notification:
            transaction.notify(self._first.queue)
