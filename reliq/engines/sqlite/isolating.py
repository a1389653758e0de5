"""Who may take which message: poison candidates one at a time, the last delivery alone.

One reserve's view of it, inside its transaction; the same rules as in reserve.lua.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from ...store.limits import CANDIDATE_FAILURES
from ...store.values import ALONE, BUSY, HOLDING

if TYPE_CHECKING:
    from .transaction import Row, Transaction

# The reason of a message whose delivery is an isolated one.
ISOLATED = "isolated"
_CLAIM = ""  # in place of a consumer
_ROW = (
    "SELECT m.tag, m.failed, m.expires, e.envelope, m.position, m.envelope FROM messages m "
    "JOIN envelopes e ON e.id = m.envelope WHERE m.queue = ? AND m.tag = ? AND m.state = 0"
)


class Isolating:
    """What a consumer may take of one queue."""

    def __init__(
        self,
        transaction: Transaction,
        queue: int,
        consumer: str,
        limit: int,
        lease_ms: int,
        company: int,
        no_ack: bool,
    ) -> None:
        self._transaction, self._queue, self._consumer = transaction, queue, consumer
        self._lease_ms, self._company, self._no_ack = lease_ms, company, no_ack
        self._poison_candidate = max(1, min(CANDIDATE_FAILURES, limit - 1)) if limit > 0 else inf
        # So many failures make the next delivery the last. With no_ack none is judged.
        self._last = limit - 1 if limit > 0 and not no_ack else inf
        self._mark, self._shut = self._own_mark()
        self._claimed, claimer = self._read_claim()
        mine = claimer == consumer and company > BUSY
        self.own_claim = self._claimed is not None and mine
        self.isolated: str | None = None
        """The message that is taken alone."""
        self.claims: str | None = None
        """The message that this consumer is to take alone, when it holds nothing else."""
        self._waits: str | None = None

    def _own_mark(self) -> tuple[str | None, bool]:
        """Return the candidate that the consumer holds, and whether alone; an old mark goes."""
        found = self._transaction.execute(
            "SELECT s.tag, m.state = 2 AND m.owner = s.consumer, m.reason FROM candidates s "
            "LEFT JOIN messages m ON m.queue = s.queue AND m.tag = s.tag "
            "WHERE s.queue = ? AND s.consumer = ?",
            (self._queue, self._consumer),
        ).fetchone()
        if found is None:
            return None, False
        if found[1]:
            return str(found[0]), found[2] == ISOLATED
        self._transaction.execute(
            "DELETE FROM candidates WHERE queue = ? AND consumer = ?",
            (self._queue, self._consumer),
        )
        return None, False

    def _read_claim(self) -> tuple[str | None, str]:
        """Return what is claimed, by whom; a claim lapses, or goes with its message."""
        found = self._transaction.execute(
            "SELECT tag FROM candidates WHERE queue = ? AND consumer = ?",
            (self._queue, _CLAIM),
        ).fetchone()
        if found is None:
            return None, ""
        tag, _, rest = found[0].partition("|")
        claimer, _, until = rest.rpartition("|")
        ready = (
            int(until) > self._transaction.now
            and self._transaction.execute(
                "SELECT 1 FROM messages WHERE queue = ? AND tag = ? AND state = 0",
                (self._queue, tag),
            ).fetchone()
        )
        return (tag, claimer) if ready else (None, "")

    def _set_mark(self, consumer: str, tag: str) -> None:
        self._transaction.execute(
            "INSERT OR REPLACE INTO candidates VALUES (?, ?, ?)",
            (self._queue, consumer, tag),
        )

    @property
    def open(self) -> bool:
        """Whether the consumer may take anything; a claim of its own is extended."""
        if self._shut:
            return False
        if self.own_claim and self._company < ALONE:
            self._claim(self._claimed)
            return False
        return True

    def claimed_row(self) -> Row | None:
        """Return the message that the consumer has claimed and may take now."""
        if not self.own_claim or self._mark is not None or self._no_ack:
            return None
        row: Row | None = self._transaction.execute(_ROW, (self._queue, self._claimed)).fetchone()
        if row is not None:
            self._isolate(row[0])
        return row

    def _isolate(self, tag: str) -> None:
        self.isolated = tag
        self._set_mark(self._consumer, tag)

    def may_take(self, tag: str, failed: int, *, first: bool) -> bool:
        """Whether a message may be taken; *first*: nothing else was."""
        if failed >= self._last:
            if self._company == ALONE and self._mark is None and first:
                self._isolate(tag)
                return True
            self._waits = self._waits or tag
            return False
        if failed < self._poison_candidate:
            return True
        if self._mark is not None:
            return False
        self._mark = tag
        self._set_mark(self._consumer, tag)
        return True

    def claim_what_waits(self) -> None:
        """Claim what was passed over; who holds nothing takes the claim of another over."""
        if self._waits is None or self._company == BUSY:
            return
        if self._company > HOLDING or self._claimed is None:
            self._claim(self._waits)

    def _claim(self, tag: str | None) -> None:
        self.claims = tag
        until = self._transaction.now + self._lease_ms
        self._set_mark(_CLAIM, f"{tag}|{self._consumer}|{until}")

    def others_wait(self) -> bool:
        """Whether anything is ready beside what was taken."""
        return (
            self._transaction.execute(
                "SELECT 1 FROM messages WHERE queue = ? AND state = 0 AND tag IS NOT ? LIMIT 1",
                (self._queue, self.isolated),
            ).fetchone()
            is not None
        )
