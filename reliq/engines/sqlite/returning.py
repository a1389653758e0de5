"""Leases after they were granted: given back, renewed, or ended with their consumer."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ...store.values import How, Lease, Lost, Released, Restored, Returned
from .base import BATCH, HELD_BY_MOVE, Step, StoreBase, batches
from .filing import drop_surplus
from .isolating import ISOLATED
from .reserve import essential

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.protocol import OnResult
    from .base import QueueRow

# The clock and one that stands still while the machine sleeps drift apart by less than
# this between two passes.
JUMP_MS = 1000


class Back(NamedTuple):
    """A message that goes back, with its count of failed deliveries."""

    tag: str
    failed: int | None
    wait_ms: int
    owner: str


def wait_ms(backoff_ms: Sequence[int], count: int) -> int:
    """Return how long a message waits after *count* failures; (0, 0): not at all."""
    least, most = backoff_ms
    return min(least * 2 ** (min(count, 64) - 1), most) if count > 0 else 0


def bury(step: Step, queue: int, died: Sequence[Back], error: str) -> None:
    """Give up on messages that have reached their delivery limit."""
    step.executemany(
        "UPDATE messages SET state = 3, position = ?, failed = ?, owner = ?, "
        "reason = 'delivery_limit', error = ? WHERE queue = ? AND tag = ?",
        [(step.now, item.failed, item.owner, error, queue, item.tag) for item in died],
    )
    step.count_deaths(queue, "delivery_limit", len(died))


def put_back(step: Step, queue: QueueRow, returned: Sequence[Back]) -> None:
    """Return messages to their old place, or let them wait; what counts it is the caller's."""
    step.executemany(
        "UPDATE messages SET state = ?, position = ifnull(?, score), failed = ?, owner = NULL, "
        "token = 0 WHERE queue = ? AND tag = ?",
        [
            (
                1 if item.wait_ms else 0,
                step.now + item.wait_ms if item.wait_ms else None,
                item.failed,
                queue.id,
                item.tag,
            )
            for item in returned
        ],
    )
    if queue.max_bytes is not None and returned:
        step.execute(
            "UPDATE queues SET waiting_bytes = waiting_bytes + ? WHERE id = ?",
            (step.sizes(queue.id, [item.tag for item in returned]), queue.id),
        )


class SqliteReturning(StoreBase):
    """What becomes of leases."""

    def release(self, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back to their old place; a requeued one is counted."""
        result = Released([], [])
        for batch in batches(leases):
            self._release(queue, how, batch, result)
        return result

    @essential
    def _release(self, name: str, how: How, leases: Sequence[Lease], result: Released) -> None:
        with self.step() as step:
            queue = step.queue(name)
            if queue is None:
                result.refused.extend(lease.tag for lease in leases)
                return
            limit = self._limit_of(queue)
            returned: list[Back] = []
            died: list[Back] = []
            refused: list[str] = []
            for tag, token in leases:
                row = step.execute(
                    "SELECT failed, owner FROM messages "
                    "WHERE queue = ? AND tag = ? AND state = 2 AND token = ? AND position < ?",
                    (queue.id, tag, token, HELD_BY_MOVE),
                ).fetchone()
                if row is None:
                    refused.append(tag)
                    continue
                count, owner = row
                wait = 0
                if how == "requeued":
                    count = (count or 0) + 1
                    wait = wait_ms(self._backoff_ms, count)
                    if 0 < limit <= count:
                        died.append(Back(tag, count, 0, owner))
                        continue
                elif how == "returned":
                    count = count or 0
                returned.append(Back(tag, count, wait, owner))
            bury(step, queue.id, died, "requeued")
            put_back(step, queue, returned)
            if returned:
                step.execute(
                    f"UPDATE queues SET {how} = {how} + ? WHERE id = ?",  # noqa: S608 - our words
                    (len(returned), queue.id),
                )
                step.ring(name)
        result.refused.extend(refused)
        for item in died:
            result.dead.append(Returned(item.tag, item.failed or 0, self.consumer, None))

    def _limit_of(self, queue: QueueRow) -> int:
        return self._delivery_limit if queue.delivery_limit is None else queue.delivery_limit

    def post_renew(
        self, queue: str, lease_ms: int, leases: Sequence[Lease], on_result: OnResult[Lost]
    ) -> None:
        """Extend leases, or end them now; the result comes once for each batch."""
        for batch in batches(leases):
            self.post(partial(self._renew, queue, lease_ms, batch), on_result)

    @essential
    def _renew(self, name: str, lease_ms: int, leases: Sequence[Lease]) -> Lost:
        lost, gone = [], []
        with self.step() as step:
            queue = step.queue(name)
            queue_id = queue.id if queue else 0
            if lease_ms > 0 and queue and queue.lease is not None:
                lease_ms = queue.lease
            # An ended lease is told by its deadline of 0 from one that merely ran out.
            until = step.now + lease_ms if lease_ms > 0 else 0
            for tag, token in leases:
                extended = step.execute(
                    "UPDATE messages SET position = ? "
                    "WHERE queue = ? AND tag = ? AND state = 2 AND token = ? AND position < ?",
                    (until, queue_id, tag, token, HELD_BY_MOVE),
                ).rowcount
                if extended:
                    continue
                lost.append(tag)
                found = step.execute(
                    "SELECT 1 FROM messages WHERE queue = ? AND tag = ?", (queue_id, tag)
                ).fetchone()
                if found is None:
                    gone.append(tag)
        return Lost(lost, gone, lease_ms)

    def leases_of(self, queue: str, consumer: str) -> list[Lease]:
        """Return the leases of *consumer*; one that ends with "/" stands for all that begin so."""
        with self.look() as step:
            rows = step.execute(
                "SELECT m.tag, m.token FROM queues q JOIN messages m ON m.queue = q.id "
                "WHERE q.prefix = ?1 AND q.name = ?2 AND m.state = 2 AND (m.owner = ?3 OR "
                "(?3 LIKE '%/' AND substr(m.owner, 1, length(?3)) = ?3)) ORDER BY m.tag",
                (step.prefix, queue, consumer),
            ).fetchall()
        return [Lease(tag, str(token)) for tag, token in rows]

    def post_restore(
        self,
        queue: str,
        lease_ms: int,
        on_result: OnResult[Restored],
        hurry: bool = False,
        told: bool = False,
    ) -> None:
        """Return messages whose lease has ended: one step of the pass, one consumer at a time."""
        self.post(lambda: self._restore(queue, lease_ms, hurry, told), on_result)

    @essential
    def _restore(self, name: str, lease_ms: int, hurry: bool, told: bool) -> Restored:
        with self.step() as step:
            refused_ms, jumped = self._pass(step, name, hurry)
            if refused_ms:
                return Restored(False, False, refused_ms, 0, {}, [], [], [], 0)
            consumers = [
                row[0]
                for row in step.execute(
                    "SELECT consumer FROM attached WHERE prefix = ? AND queue = ?",
                    (step.prefix, name),
                )
            ]
            queue = step.queue(name)
            step.execute(
                "DELETE FROM publishers WHERE prefix = ? AND queue = ? AND until <= ?",
                (step.prefix, name, step.now),
            )
            if queue is None:
                return Restored(True, False, 0, 0, {}, [], [], consumers, 0)
            # While the machine slept nobody could renew. Leases that were ended (0) do not
            # wait for that.
            lease = queue.lease or lease_ms
            ran_out_by = self._pass_over(step, queue, lease, hurry)
            until = 0 if step.now - jumped < lease else ran_out_by
            restored, died = self._restore_ended(step, name, queue, until, told)
            self._ring_for_what_waits(step, name, queue)
            dropped = self._drop_old(step, queue)
            unacked, dead = (
                step.execute(
                    "SELECT count(*) FROM messages WHERE queue = ? AND state = ?",
                    (queue.id, state),
                ).fetchone()[0]
                for state in (2, 3)
            )
            ended = Counter(item.consumer for item in (*restored, *died))
            more = BATCH in {ended.total(), dropped}
            to_route = dead if queue.dead_letter_exchange is not None else 0
        listed = restored if told else []
        return Restored(True, more, 0, unacked, dict(ended), listed, died, consumers, to_route)

    def _pass(self, step: Step, name: str, hurry: bool) -> tuple[int, int]:
        """Take the mutex of the pass, which lapses by itself; with *hurry* it is not needed.

        Returns (ms that the pass of another still counts, or 0; when the clock jumped
        last: the machine slept or was started, or its clock was set).
        """
        ahead = step.now - time.monotonic_ns() // 1_000_000
        found = step.execute(
            "SELECT owner, until, ahead, jumped FROM passes WHERE prefix = ? AND queue = ?",
            (step.prefix, name),
        ).fetchone()
        owner, until, known, jumped = found or (self.consumer, 0, ahead, 0)
        if abs(ahead - known) > JUMP_MS:
            # By the clock of before, the pass of another may count for hours.
            jumped, until = step.now, 0
        if hurry:
            interval = 0
        elif owner != self.consumer and until > step.now:
            return until - step.now, jumped
        else:
            interval = max(int(self.options.restore_interval * 1000), 1)
            owner, until = self.consumer, step.now + interval
        if interval or jumped == step.now:
            step.execute(
                "INSERT OR REPLACE INTO passes VALUES (?, ?, ?, ?, ?, ?)",
                (step.prefix, name, owner, until, ahead, jumped),
            )
        return 0, jumped

    def _pass_over(self, step: Step, queue: QueueRow, lease: int, hurry: bool) -> int:
        """Note the pass; return by when a lease has to have run out to be ended by it.

        A pass that is long overdue, or the first: somebody stood still who had the file
        locked, or nobody looked. Who lives has renewed in half a lease from now. What had
        run out by the pass before has had its time to be renewed since then.
        """
        spared_from, spared_until = queue.spared_from, queue.spared_until
        if queue.passed > step.now:  # the clock was set back
            spared_until = 0
        elif queue.pass_due < step.now:
            spared_from, spared_until = queue.passed, step.now + lease // 2
        if not hurry:
            interval = max(int(self.options.restore_interval * 1000), 1)
            due = step.now + int(min(interval * 3 / 2 + lease / 6, lease * 2 / 3))
            step.execute(
                "UPDATE queues SET passed = ?, pass_due = ?, spared_from = ?, spared_until = ? "
                "WHERE id = ?",
                (step.now, due, spared_from, spared_until, queue.id),
            )
        return spared_from if step.now < spared_until else step.now

    def _restore_ended(
        self, step: Step, name: str, queue: QueueRow, until: int, envelopes: bool
    ) -> tuple[list[Returned], list[Returned]]:
        rows = step.execute(
            "SELECT m.tag, ifnull(m.failed, 0), m.owner, m.reason, CASE WHEN ? THEN e.envelope END "
            "FROM messages m JOIN envelopes e ON e.id = m.envelope "
            "WHERE m.queue = ? AND m.state = 2 AND m.position <= ? ORDER BY m.position LIMIT ?",
            (envelopes, queue.id, until, BATCH),
        ).fetchall()
        if not rows:
            self._clear_marks(step, queue.id)
            return [], []
        limit = self._limit_of(queue)
        back: list[Back] = []
        buried: list[Back] = []
        restored: list[Returned] = []
        died: list[Returned] = []
        for tag, failures, owner, kind, envelope in rows:
            count = failures + 1
            if 0 < limit <= count:
                if kind == ISOLATED:
                    buried.append(Back(tag, count, 0, owner))
                    died.append(Returned(tag, count, owner, envelope))
                    continue
                # In company nobody knows which of them it was.
                count = max(failures, limit - 1)
            back.append(Back(tag, count, wait_ms(self._backoff_ms, count), owner))
            restored.append(Returned(tag, count, owner, envelope))
        bury(step, queue.id, buried, "lease ended")
        put_back(step, queue, back)
        if len(rows) < BATCH:
            self._clear_marks(step, queue.id)
        step.execute(
            "UPDATE queues SET restored = restored + ?, lapsed = lapsed + ? WHERE id = ?",
            (len(back), len(rows), queue.id),
        )
        if any(item.wait_ms for item in back):
            step.ring(name)
        return restored, died

    @staticmethod
    def _clear_marks(step: Step, queue: int) -> None:
        """Forget the marks of consumers that do not hold their suspect any more.

        It was given back just now, or was acked by one that leaves and asks for nothing again.
        """
        step.execute(
            "DELETE FROM suspects WHERE queue = ? AND consumer != '' AND NOT EXISTS "
            "(SELECT 1 FROM messages m WHERE m.queue = suspects.queue AND m.tag = suspects.tag "
            "AND m.state = 2 AND m.owner = suspects.consumer)",
            (queue,),
        )

    @staticmethod
    def _ring_for_what_waits(step: Step, name: str, queue: QueueRow) -> None:
        """Make up for a ring, or the knowledge of what is due, that was lost with its consumer."""
        if queue.paused:
            return
        waiting = step.execute(
            "SELECT 1 FROM messages WHERE queue = ?1 AND state = 0 UNION ALL "
            "SELECT 1 FROM messages WHERE queue = ?1 AND state = 1 AND position <= ?2 LIMIT 1",
            (queue.id, step.now),
        ).fetchone()
        if waiting:
            step.ring(name)

    def _drop_old(self, step: Step, queue: QueueRow) -> int:
        """Remove dead letters beyond their age or number; return how many, a batch at most."""
        old = step.execute(
            "SELECT tag FROM messages WHERE queue = ? AND state = 3 AND position <= ? "
            "ORDER BY position LIMIT ?",
            (queue.id, step.now - self._dead_letter_ttl_ms, BATCH),
        ).fetchall()
        if not old:
            return drop_surplus(step, queue.id, self.options.dead_letter_max)
        step.drop(queue.id, [tag for (tag,) in old])
        step.execute("UPDATE queues SET dropped = dropped + ? WHERE id = ?", (len(old), queue.id))
        return len(old)
