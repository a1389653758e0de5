"""The pass: messages whose lease has ended go back, and what is old goes with it."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from ...store.limits import BATCH
from ...store.values import Restored, Returned
from .base import StoreBase
from .disk_reserve import essential
from .insert import trim_dead
from .isolating import ISOLATED
from .redelivery import Back, backoff, dead_letter, limit_of, note_failures, put_back

if TYPE_CHECKING:
    from ...store.protocol import OnResult
    from .transaction import QueueRow, Transaction

# The clock and one that stops while the machine sleeps drift apart by less than
# this between two passes.
JUMP_MS = 1000


class SqliteRestoring(StoreBase):
    """What becomes of leases whose consumer is gone, or did not renew them."""

    def post_restore(
        self,
        queue: str,
        lease_ms: int,
        on_result: OnResult[Restored],
        force: bool = False,
        include_messages: bool = False,
    ) -> None:
        """Return messages whose lease has ended: one step of the pass, one consumer at a time."""
        self.post(lambda: self._restore(queue, lease_ms, force, include_messages), on_result)

    @essential
    def _restore(self, name: str, lease_ms: int, force: bool, include_messages: bool) -> Restored:
        with self.write() as transaction:
            refused_ms, jumped = self._pass(transaction, name, force)
            if refused_ms:
                return Restored(False, False, refused_ms, 0, {}, [], [], [], 0)
            consumers = [
                row[0]
                for row in transaction.execute(
                    "SELECT consumer FROM attached WHERE prefix = ? AND queue = ?",
                    (transaction.prefix, name),
                )
            ]
            queue = transaction.queue(name)
            transaction.execute(
                "DELETE FROM publishers WHERE prefix = ? AND queue = ? AND until <= ?",
                (transaction.prefix, name, transaction.now),
            )
            if queue is None:
                return Restored(True, False, 0, 0, {}, [], [], consumers, 0)
            # While the machine slept nobody could renew. Leases that were ended (0) do not
            # wait for that.
            lease = queue.lease or lease_ms
            ran_out_by = self._pass_over(transaction, queue, lease, force)
            until = 0 if transaction.now - jumped < lease else ran_out_by
            restored, died = self._restore_ended(transaction, name, queue, until, include_messages)
            self._notify_of_what_waits(transaction, name, queue)
            dropped = self._drop_old(transaction, queue)
            unacked, dead = (
                transaction.execute(
                    "SELECT count(*) FROM messages WHERE queue = ? AND state = ?",
                    (queue.id, state),
                ).fetchone()[0]
                for state in (2, 3)
            )
            ended = Counter(item.consumer for item in (*restored, *died))
            more = BATCH in {ended.total(), dropped}
            to_route = dead if queue.dead_letter_exchange is not None else 0
        listed = restored if include_messages else []
        return Restored(True, more, 0, unacked, dict(ended), listed, died, consumers, to_route)

    def _pass(self, transaction: Transaction, name: str, force: bool) -> tuple[int, int]:
        """Take the mutex of the pass, which lapses by itself; with *force* it is not needed.

        Returns (ms that the pass of another still counts, or 0; when the clock jumped
        last: the machine slept or was started, or its clock was set).
        """
        ahead = transaction.now - time.monotonic_ns() // 1_000_000
        found = transaction.execute(
            "SELECT owner, until, ahead, jumped FROM passes WHERE prefix = ? AND queue = ?",
            (transaction.prefix, name),
        ).fetchone()
        owner, until, known, jumped = found or (self.consumer, 0, ahead, 0)
        if abs(ahead - known) > JUMP_MS:
            # By the clock of before, the pass of another may count for hours.
            jumped, until = transaction.now, 0
        if force:
            interval = 0
        elif owner != self.consumer and until > transaction.now:
            return until - transaction.now, jumped
        else:
            interval = max(int(self.options.restore_interval * 1000), 1)
            owner, until = self.consumer, transaction.now + interval
        if interval or jumped == transaction.now:
            transaction.execute(
                "INSERT OR REPLACE INTO passes VALUES (?, ?, ?, ?, ?, ?)",
                (transaction.prefix, name, owner, until, ahead, jumped),
            )
        return 0, jumped

    def _pass_over(self, transaction: Transaction, queue: QueueRow, lease: int, force: bool) -> int:
        """Note the pass; return by when a lease has to have run out to be ended by it.

        A pass that is long overdue, or the first: somebody was frozen who had the file
        locked, or nobody looked. Who lives has renewed in half a lease from now. What had
        run out by the pass before has had its time to be renewed since then.
        """
        spared_from, spared_until = queue.spared_from, queue.spared_until
        if queue.passed > transaction.now:  # the clock was set back
            spared_until = 0
        elif queue.pass_due < transaction.now:
            spared_from, spared_until = queue.passed, transaction.now + lease // 2
        if not force:
            interval = max(int(self.options.restore_interval * 1000), 1)
            due = transaction.now + int(min(interval * 3 / 2 + lease / 6, lease * 2 / 3))
            transaction.execute(
                "UPDATE queues SET passed = ?, pass_due = ?, spared_from = ?, spared_until = ? "
                "WHERE id = ?",
                (transaction.now, due, spared_from, spared_until, queue.id),
            )
        return spared_from if transaction.now < spared_until else transaction.now

    def _restore_ended(
        self, transaction: Transaction, name: str, queue: QueueRow, until: int, envelopes: bool
    ) -> tuple[list[Returned], list[Returned]]:
        rows = transaction.execute(
            "SELECT m.tag, ifnull(m.failed, 0), m.owner, m.reason, CASE WHEN ? THEN e.envelope END "
            "FROM messages m JOIN envelopes e ON e.id = m.envelope "
            "WHERE m.queue = ? AND m.state = 2 AND m.position <= ? ORDER BY m.position LIMIT ?",
            (envelopes, queue.id, until, BATCH),
        ).fetchall()
        if not rows:
            self._forget_marks(transaction, queue.id)
            return [], []
        limit = limit_of(queue, self._delivery_limit)
        back: list[Back] = []
        dead_lettered: list[Back] = []
        restored: list[Returned] = []
        died: list[Returned] = []
        for tag, failures, owner, kind, envelope in rows:
            count = failures + 1
            if 0 < limit <= count:
                if kind == ISOLATED:
                    dead_lettered.append(Back(tag, count, 0, owner))
                    died.append(Returned(tag, count, owner, envelope))
                    continue
                # In company nobody knows which of them it was.
                count = max(failures, limit - 1)
            back.append(Back(tag, count, backoff(self._backoff_ms, count), owner))
            restored.append(Returned(tag, count, owner, envelope))
        note_failures(transaction, queue.id, "lapsed", [*back, *dead_lettered])
        dead_letter(transaction, queue.id, dead_lettered, "lease ended")
        put_back(transaction, queue, back)
        if len(rows) < BATCH:
            self._forget_marks(transaction, queue.id)
        transaction.execute(
            "UPDATE queues SET restored = restored + ?, lapsed = lapsed + ? WHERE id = ?",
            (len(back), len(rows), queue.id),
        )
        if any(item.wait_ms for item in back):
            transaction.notify(name)
        return restored, died

    @staticmethod
    def _forget_marks(transaction: Transaction, queue: int) -> None:
        """Forget the marks of consumers that do not hold their candidate any more.

        It was given back just now, or was acked by one that leaves and asks for nothing again.
        """
        transaction.execute(
            "DELETE FROM candidates WHERE queue = ? AND consumer != '' AND NOT EXISTS "
            "(SELECT 1 FROM messages m WHERE m.queue = candidates.queue AND m.tag = candidates.tag "
            "AND m.state = 2 AND m.owner = candidates.consumer)",
            (queue,),
        )

    @staticmethod
    def _notify_of_what_waits(transaction: Transaction, name: str, queue: QueueRow) -> None:
        """Make up for a notification, or a due time, that was lost with its consumer."""
        if queue.paused:
            return
        waiting = transaction.execute(
            "SELECT 1 FROM messages WHERE queue = :queue AND state = 0 UNION ALL "
            "SELECT 1 FROM messages WHERE queue = :queue AND state = 1 AND position <= :now "
            "LIMIT 1",
            {"queue": queue.id, "now": transaction.now},
        ).fetchone()
        if waiting:
            transaction.notify(name)

    def _drop_old(self, transaction: Transaction, queue: QueueRow) -> int:
        """Remove dead letters beyond their age or number; return how many, a batch at most."""
        old = transaction.execute(
            "SELECT tag FROM messages WHERE queue = ? AND state = 3 AND position <= ? "
            "ORDER BY position LIMIT ?",
            (queue.id, transaction.now - self._dead_letter_ttl_ms, BATCH),
        ).fetchall()
        if not old:
            return trim_dead(transaction, queue.id, self.options.dead_letter_max)
        transaction.drop(queue.id, [tag for (tag,) in old])
        transaction.execute(
            "UPDATE queues SET dropped = dropped + ? WHERE id = ?", (len(old), queue.id)
        )
        return len(old)
