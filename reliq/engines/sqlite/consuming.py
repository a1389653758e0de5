"""Taking messages under a lease, and finishing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store import Delivery, Reservation
from .base import BATCH, DELAYED, READY, Step, StoreBase, rank_score
from .reserve import essential

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...store import OnResult

_SELECT = (
    "SELECT id, published, promoted, token, bell, paused, lease, expires, delivery_limit, "
    "dead_expired, max_bytes FROM queues WHERE prefix = ? AND name = ?"
)
_TAKE = (
    "SELECT m.tag, m.failed, m.expires, e.envelope, m.position, m.envelope FROM messages m "
    "JOIN envelopes e ON e.id = m.envelope WHERE m.queue = ? AND m.state = 0 AND m.position > ? "
    "ORDER BY m.position LIMIT ?"
)
_ROUNDS = 4


def count_down_bytes(step: Step, queue: int, size: int) -> None:
    """Note that so many bytes wait no more; what came before the limit was never counted."""
    step.execute(
        "UPDATE queues SET waiting_bytes = max(waiting_bytes - ?, 0) WHERE id = ?", (size, queue)
    )


def own_mark(step: Step, queue: int, consumer: str) -> str | None:
    """Return the suspect that *consumer* still holds; a mark that has done its work goes."""
    found = step.execute(
        "SELECT s.tag, m.state = 2 AND m.owner = s.consumer FROM suspects s LEFT JOIN messages m "
        "ON m.queue = s.queue AND m.tag = s.tag WHERE s.queue = ? AND s.consumer = ?",
        (queue, consumer),
    ).fetchone()
    if found is None:
        return None
    if found[1]:
        return str(found[0])
    step.execute("DELETE FROM suspects WHERE queue = ? AND consumer = ?", (queue, consumer))
    return None


class _Taking:
    """One reserve, inside its step."""

    def __init__(self, step: Step, row: tuple[int, ...]) -> None:
        self.step = step
        self.queue, self.published, self.promoted = row[:3]
        self.dead_expired, self.counts_bytes = row[9], row[10] is not None
        self.bytes = 0

    def remove_expired(self) -> None:
        """Let expired messages leave first, so that none of them is promoted or leased."""
        step = self.step
        overdue = step.execute(
            "SELECT tag FROM messages INDEXED BY expiries WHERE queue = ? AND expires <= ? "
            "AND expires IS NOT NULL AND state < 2 ORDER BY expires LIMIT ?",
            (self.queue, step.now, BATCH),
        ).fetchall()
        if overdue:
            self.expire([tag for (tag,) in overdue])

    def expire(self, tags: Sequence[str]) -> None:
        """Remove expired messages, or bury them where the queue says so."""
        step = self.step
        if self.counts_bytes:
            self.bytes += step.sizes(self.queue, tags)
        if self.dead_expired:
            step.executemany(
                "UPDATE messages SET state = 3, position = ?, "
                "reason = 'expired', owner = '', error = '' WHERE queue = ? AND tag = ?",
                [(step.now, self.queue, tag) for tag in tags],
            )
            step.count_deaths(self.queue, "expired", len(tags))
        else:
            step.drop(self.queue, tags)
            step.execute(
                "UPDATE queues SET expired = expired + ? WHERE id = ?", (len(tags), self.queue)
            )

    def promote(self) -> int:
        """Make ready what is due; return the ms until more is, or -1."""
        step = self.step
        due = step.execute(
            "SELECT tag, position FROM messages WHERE queue = ? AND state = 1 "
            "ORDER BY position, tag LIMIT ?",
            (self.queue, BATCH + 1),
        ).fetchall()
        if not due:
            return -1
        late = [tag for tag, position in due[:BATCH] if position <= step.now]
        if late:
            # Behind what is ready at its rank now.
            sequence = self.published + self.promoted
            places = ((rank_score(tag, sequence + i), tag) for i, tag in enumerate(late, 1))
            step.executemany(
                "UPDATE messages SET state = 0, position = ?1, score = ?1 "
                "WHERE queue = ?2 AND tag = ?3",
                [(score, self.queue, tag) for score, tag in places],
            )
            step.execute(
                "UPDATE queues SET promoted = promoted + ? WHERE id = ?", (len(late), self.queue)
            )
        return max(due[len(late)][1] - step.now, 0) if len(late) < len(due) else -1

    def take(self, n: int, suspected: int, consumer: str) -> tuple[list[tuple], bool, bool]:  # type: ignore[type-arg]
        """Choose up to *n* of the ready: (rows, whether suspects were passed over, more left)."""
        step = self.step
        taken: list[tuple] = []  # type: ignore[type-arg]
        mark = own_mark(step, self.queue, consumer)
        passed, after = 0, -1
        for _ in range(_ROUNDS):
            rows = step.execute(_TAKE, (self.queue, after, n - len(taken) + 1)).fetchall()
            more = len(rows) > n - len(taken)
            for row in rows[: n - len(taken)]:
                after = row[4]
                if suspected and (row[1] or 0) >= suspected:
                    if mark is not None:
                        passed += 1
                        continue
                    mark = row[0]
                    step.execute(
                        "INSERT OR REPLACE INTO suspects VALUES (?, ?, ?)",
                        (self.queue, consumer, mark),
                    )
                taken.append(row)
            # Look a little further for what may be taken beside a suspect.
            if len(taken) == n or not more or not passed:
                break
        blocked = passed > 0 and len(taken) < n
        gone = [row[0] for row in taken if row[2] is not None and row[2] <= step.now]
        if gone:  # the look before was bounded
            self.expire(gone)
            taken = [row for row in taken if row[2] is None or row[2] > step.now]
        return taken, blocked, more or passed > 0


class SqliteConsuming(StoreBase):
    """Reserving and acking."""

    @essential
    def reserve(self, queue: str, n: int, lease_ms: int, no_ack: bool) -> Reservation:
        """Take up to *n* messages under a lease; with *no_ack* they are finished at once."""
        n = min(n, BATCH)
        with self.step() as step:
            row = step.execute(_SELECT, (step.prefix, queue)).fetchone()
            if row is None:
                return Reservation([], -1, lease_ms, False)
            queue_id, token, bell, paused = row[0], row[3], row[4], row[5]
            lease_ms = row[6] or lease_ms
            limit = self._delivery_limit if row[8] is None else row[8]
            taking = _Taking(step, row)
            taking.remove_expired()
            next_due = taking.promote()
            rows: list[tuple] = []  # type: ignore[type-arg]
            blocked = left = False
            if n > 0 and not paused:
                suspected = max(1, min(2, limit - 1)) if limit > 0 else 0
                rows, blocked, left = taking.take(n, suspected, self.consumer)
                if rows:
                    self._hold(step, taking, rows, token, lease_ms, no_ack)
            elif not paused:
                own_mark(step, queue_id, self.consumer)
                left = (
                    step.execute(
                        "SELECT 1 FROM messages WHERE queue = ? AND state = 0 LIMIT 1", (queue_id,)
                    ).fetchone()
                    is not None
                )
            if row[7] is not None:
                step.execute("UPDATE queues SET used_at = ? WHERE id = ?", (step.now, queue_id))
            if taking.counts_bytes and taking.bytes:
                count_down_bytes(step, queue_id, taking.bytes)
            if blocked and left:
                # What is left is not for this consumer now, and ringing would wake it
                # first: it asks again when it is done with its suspect, or in a second.
                next_due = 1000 if next_due < 0 else min(next_due, 1000)
            elif left and not bell:
                step.ring(queue)
        deliveries = [
            Delivery(
                queue,
                tag,
                str(i),
                -1 if failed is None else failed,
                envelope,
            )
            for i, (tag, failed, _, envelope, _, _) in enumerate(rows, 0 if no_ack else token + 1)
        ]
        held_back = blocked and left
        return Reservation(deliveries, next_due, lease_ms, left and not held_back, held_back)

    def _hold(
        self,
        step: Step,
        taking: _Taking,
        rows: Sequence[tuple],  # type: ignore[type-arg]
        token: int,
        lease_ms: int,
        no_ack: bool,
    ) -> None:
        queue = taking.queue
        if taking.counts_bytes:
            taking.bytes += sum(len(row[3]) for row in rows)
        again = sum(row[1] is not None for row in rows)
        if no_ack:
            step.executemany("DELETE FROM envelopes WHERE id = ?", [(row[5],) for row in rows])
            step.executemany(
                "DELETE FROM messages WHERE queue = ? AND tag = ?", [(queue, r[0]) for r in rows]
            )
            step.execute(
                "UPDATE queues SET acked = acked + ?, redelivered = redelivered + ? WHERE id = ?",
                (len(rows), again, queue),
            )
            return
        until, consumer = step.now + lease_ms, self.consumer
        step.executemany(
            "UPDATE messages SET state = 2, position = ?, token = ?, owner = ? "
            "WHERE queue = ? AND tag = ?",
            [(until, token + i, consumer, queue, row[0]) for i, row in enumerate(rows, 1)],
        )
        step.execute(
            "UPDATE queues SET token = token + ?, redelivered = redelivered + ? WHERE id = ?",
            (len(rows), again, queue),
        )

    def post_reserve(
        self, queue: str, n: int, lease_ms: int, no_ack: bool, on_result: OnResult[Reservation]
    ) -> None:
        """Take now what :meth:`reserve` takes; it comes when it is asked for."""
        self.post(lambda: self.reserve(queue, n, lease_ms, no_ack), on_result)

    def post_ack(self, queue: str, tags: Sequence[str], on_result: OnResult[int]) -> None:
        """Finish messages, whoever holds their lease and wherever they are."""
        self.post(lambda: self._ack(queue, tags), on_result)

    @essential
    def _ack(self, queue: str, tags: Iterable[str]) -> int:
        with self.step() as step:
            row = step.execute(
                "SELECT id, max_bytes FROM queues WHERE prefix = ? AND name = ?",
                (step.prefix, queue),
            ).fetchone()
            if row is None:
                return 0
            queue_id, found, size = row[0], 0, 0
            for tag in tags:
                message = step.execute(
                    "SELECT envelope, state FROM messages WHERE queue = ? AND tag = ?",
                    (queue_id, tag),
                ).fetchone()
                if message is None:
                    continue
                if row[1] is not None and message[1] in (READY, DELAYED):
                    size += step.sizes(queue_id, [tag])
                step.execute("DELETE FROM envelopes WHERE id = ?", (message[0],))
                step.execute("DELETE FROM messages WHERE queue = ? AND tag = ?", (queue_id, tag))
                found += 1
            if found:
                step.execute("UPDATE queues SET acked = acked + ? WHERE id = ?", (found, queue_id))
            if size:
                count_down_bytes(step, queue_id, size)
            return found

    def end_wait(self) -> None:
        """End the doorbell's wait, so that it can begin anew for other queues."""
        if self._doorbell.listening:
            self._doorbell.end_wait()
