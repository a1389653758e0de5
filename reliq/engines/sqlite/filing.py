"""Filing: one message after another into one queue, inside a step.

Owns what a queue says of that: numbers that are known, limits, times to live, and
whose turn it becomes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.values import DUPLICATE, FULL, STORED
from .base import BATCH, DEAD, DELAYED, MOVES_KEPT_MS, RANK, READY
from .doubts import hold
from .expiring import expire, overdue
from .numbers import Numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.values import Publication
    from .base import Step

_INSERT = (
    "INSERT INTO messages (queue, tag, state, position, score, failed, expires, envelope) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
SELECT = (
    "SELECT id, published, promoted, bell, message_ttl, max_length, max_bytes, overflow, "
    "waiting_bytes, dead_expired FROM queues WHERE prefix = ? AND name = ?"
)
"""What a Filing wants to know of the queue."""


def put(
    step: Step,
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
    stored = step.execute("INSERT INTO envelopes (envelope) VALUES (?)", (envelope,)).lastrowid
    assert stored is not None  # noqa: S101 - after an INSERT
    place = (DELAYED, due, None) if due else (READY, score, score)
    step.execute(_INSERT, (queue, tag, *place, failed, expires, stored))
    return stored


def waiting_in(step: Step, queue: int, most: int) -> int:
    """Return how many messages wait (ready or delayed), as far as *most*."""
    total = 0
    for state in (READY, DELAYED):
        total += step.execute(
            "SELECT count(*) FROM (SELECT 1 FROM messages WHERE queue = ? AND state = ? LIMIT ?)",
            (queue, state, most),
        ).fetchone()[0]
    return total


def drop_surplus(step: Step, queue: int, dead_letter_max: int) -> int:
    """Keep the stated cap of the dead letters: the oldest leave, counted; return how many."""
    (dead,) = step.execute(
        "SELECT count(*) FROM messages WHERE queue = ? AND state = ?", (queue, DEAD)
    ).fetchone()
    over = min(dead - dead_letter_max, BATCH)
    if over > 0:
        surplus = step.execute(
            "SELECT tag FROM messages WHERE queue = ? AND state = ? ORDER BY position, tag LIMIT ?",
            (queue, DEAD, over),
        ).fetchall()
        step.drop(queue, [tag for (tag,) in surplus])
        step.execute("UPDATE queues SET dropped = dropped + ? WHERE id = ?", (over, queue))
    return max(int(over), 0)


def earliest(step: Step, queue: int) -> tuple[int, str]:
    """Return when the first delayed message is due, and its tag."""
    found = step.execute(
        "SELECT position, tag FROM messages WHERE queue = ? AND state = ? "
        "ORDER BY position, tag LIMIT 1",
        (queue, DELAYED),
    ).fetchone()
    return (2**62, "") if found is None else (int(found[0]), str(found[1]))


class Known:
    """The numbers of one publisher in one queue, within a step."""

    def __init__(self, step: Step, queue: str, publisher: str) -> None:
        self._step, self._place = step, (step.prefix, queue, publisher)
        found = step.execute(
            "SELECT low, numbers FROM publishers "
            "WHERE prefix = ? AND queue = ? AND publisher = ? AND until > ?",
            (*self._place, step.now),
        ).fetchone()
        self.low = found[0] if found else 0
        self.numbers = Numbers(found[1] if found else "")

    def __contains__(self, number: int) -> bool:
        """Whether *number* was stored before."""
        # One below low: the request was held back until its retry had returned.
        return number < self.low or number in self.numbers

    def keep(self, low: int, keep_ms: int) -> None:
        """Store them, but for what is settled."""
        if low:
            self.numbers.forget_below(low)
            self.low = max(self.low, low)
        self._step.execute(
            "INSERT INTO publishers VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (prefix, queue, publisher) DO UPDATE SET "
            "low = excluded.low, numbers = excluded.numbers, until = max(until, excluded.until)",
            (*self._place, self.low, str(self.numbers), self._step.now + keep_ms),
        )


class Limits:
    """The limits of one queue within a step."""

    def __init__(self, step: Step, queue: int, row: tuple[int | str | None, ...]) -> None:
        length, size, overflow, waiting_bytes, dead_expired = row
        self.limited = length is not None or size is not None
        self.rejects = overflow == "reject-publish"
        self.counts_bytes = size is not None
        self.max_length = int(length) if length is not None else 2**62
        self.max_bytes = int(size) if size is not None else 2**62
        self.bytes = int(waiting_bytes or 0)
        self.waiting = 0
        self._step, self._queue = step, queue
        self._dead_expired = int(dead_expired or 0)
        if self.limited:
            self.waiting = waiting_in(step, queue, self.max_length + BATCH)

    def make_room(self, items: Sequence[Publication]) -> None:
        """Let what has expired leave first, where *items* would not all be within the limits."""
        more = sum(len(item.envelope) for item in items)
        if not self.limited or (
            self.waiting + len(items) <= self.max_length and self.bytes + more <= self.max_bytes
        ):
            return
        step, queue = self._step, self._queue
        if not (expired := overdue(step, queue)):
            return
        self.waiting -= len(expired)
        if self.counts_bytes:
            self.bytes = max(self.bytes - step.sizes(queue, expired), 0)
            step.execute("UPDATE queues SET waiting_bytes = ? WHERE id = ?", (self.bytes, queue))
        expire(step, queue, expired, self._dead_expired)

    def full_for(self, envelope: bytes) -> bool:
        """Whether one more message is refused."""
        return self.rejects and (
            self.waiting + 1 > self.max_length or self.bytes + len(envelope) > self.max_bytes
        )

    def drop_head(self, died_ms: int) -> int:
        """Let the oldest of the lowest priority give way to the dead letters; return how many."""
        step, queue, dropped = self._step, self._queue, 0
        if not self.limited or self.rejects:
            return 0
        while dropped < BATCH and (self.waiting > self.max_length or self.bytes > self.max_bytes):
            victim = self._victim()
            if victim is None:
                break
            if self.counts_bytes:
                self.bytes -= step.sizes(queue, [victim])
            step.execute(
                "UPDATE messages SET state = ?, position = ?, "
                "reason = 'maxlen', owner = '', error = '' WHERE queue = ? AND tag = ?",
                (DEAD, died_ms, queue, victim),
            )
            self.waiting -= 1
            dropped += 1
        return dropped

    def _victim(self) -> str | None:
        step, queue = self._step, self._queue
        last = step.execute(
            "SELECT max(position) FROM messages WHERE queue = ? AND state = ?", (queue, READY)
        ).fetchone()[0]
        state, least = (DELAYED, 0) if last is None else (READY, last // RANK * RANK)
        row = step.execute(
            "SELECT tag FROM messages WHERE queue = ? AND state = ? AND position >= ? "
            "ORDER BY position, tag LIMIT 1",
            (queue, state, least),
        ).fetchone()
        return None if row is None else str(row[0])


class Filing:
    """Publications that differ in nothing but the message, on their way into one queue."""

    def __init__(self, step: Step, row: tuple[int, ...], items: Sequence[Publication]) -> None:
        first = items[0]
        self._step, self._first = step, first
        self._queue, published, promoted, self._bell, self._ttl_ms = row[:5]
        self._limits = Limits(step, self._queue, row[5:])
        self._limits.make_room(items)
        self._known = Known(step, first.queue, first.publisher) if first.number else None
        # Publishing and promoting both move the sequence on, so it never repeats.
        self._before = self._sequence = published + promoted
        self._rang = False
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
        step, queue = self._step, self._queue
        due = step.now + item.delay_ms if item.delay_ms > 0 else 0
        ttl = item.ttl_ms
        if self._ttl_ms is not None and (ttl < 0 or self._ttl_ms < ttl):
            ttl = self._ttl_ms
        expires = None if ttl < 0 else step.now + item.delay_ms + ttl
        self._sequence += 1
        score = item.rank * RANK + self._sequence
        if not item.doubt:
            self._rang = self._rang or not due or self._first_due(due, item.tag)
        put(step, queue, item.tag, item.envelope, score, due, expires)
        if item.doubt:
            hold(step, queue, item.tag, item.publisher, item.number)
            return
        self._limits.waiting += 1
        self._limits.bytes += len(item.envelope)

    def _first_due(self, due: int, tag: str) -> bool:
        """Whether it becomes the earliest: only that changes how long anyone may sleep."""
        if self._earliest is None:
            self._earliest = earliest(self._step, self._queue)
        if (due, tag) > self._earliest:
            return False
        self._earliest = (due, tag)
        return True

    def finish(self, items: Sequence[Publication], dead_letter_max: int, keep_ms: int) -> None:
        """Count what was stored, remember its numbers, keep the limits, and ring."""
        step, new = self._step, self._sequence - self._before
        if not new:
            return
        if self._known is not None:
            keep = MOVES_KEPT_MS if self._first.moved else keep_ms
            self._known.keep(max(item.low for item in items), keep)
        dropped = self._limits.drop_head(step.now)
        step.execute(
            "UPDATE queues SET published = published + ?, waiting_bytes = ? WHERE id = ?",
            (new, self._limits.bytes if self._limits.counts_bytes else 0, self._queue),
        )
        if dropped:
            step.count_deaths(self._queue, "maxlen", dropped)
            drop_surplus(step, self._queue, dead_letter_max)
        if self._rang and not self._bell:
            step.ring(self._first.queue)
