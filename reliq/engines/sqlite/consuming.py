"""Taking messages under a lease, and finishing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.limits import BATCH
from ...store.values import HOLDING, Delivery, Promoted, Reservation
from .base import StoreBase
from .disk_reserve import essential
from .expiring import count_down_bytes, expire, overdue
from .isolating import ISOLATED, Isolating
from .taking import SELECT, Taking, size_of
from .transaction import DELAYED, READY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...store.protocol import OnResult
    from .transaction import Row, Transaction


def _deliveries(
    queue: str,
    rows: Sequence[Row],
    token: int,
    no_ack: bool,
) -> list[Delivery]:
    """Return what is handed out; *token* is the one that was granted last."""
    return [
        Delivery(
            queue,
            tag,
            str(i),
            -1 if failed is None else failed,
            envelope if isinstance(envelope, bytes) else b"",
            *((str(position), -1 if expires is None else expires) if no_ack else ()),
        )
        for i, (tag, failed, expires, envelope, position, _) in enumerate(
            rows, 0 if no_ack else token + 1
        )
    ]


class SqliteConsuming(StoreBase):
    """Reserving and acking."""

    @essential
    def reserve(
        self, queue: str, n: int, lease_ms: int, no_ack: bool, company: int = HOLDING
    ) -> Reservation:
        """Take up to *n* messages under a lease; with *no_ack* they are finished at once.

        Longer than most: it is one transaction, in the order of reserve.lua.
        """
        n = min(n, BATCH)
        with self.write() as transaction:
            row = transaction.execute(SELECT, (transaction.prefix, queue)).fetchone()
            if row is None:
                return Reservation([], -1, lease_ms, False)
            queue_id, token, notification, paused = row[0], row[3], row[4], row[5]
            lease_ms = row[6] or lease_ms
            limit = self._delivery_limit if row[8] is None else row[8]
            taking = Taking(transaction, row)
            if expired := overdue(transaction, queue_id):  # so that none is promoted, or leased
                taking.expire(expired)
            next_due = taking.promote()
            rows: list[Row] = []
            blocked = left = False
            isolating = Isolating(
                transaction, queue_id, self.consumer, limit, lease_ms, company, no_ack
            )
            if not paused:
                rows, blocked, left = taking.take(n, isolating)
                token += taking.events
                if rows:
                    alone = isolating.isolated is not None
                    self._hold(transaction, taking, rows, token, lease_ms, no_ack, alone)
            if row[7] is not None:
                transaction.execute(
                    "UPDATE queues SET used_at = ? WHERE id = ?", (transaction.now, queue_id)
                )
            if taking.counts_bytes and taking.bytes:
                count_down_bytes(transaction, queue_id, taking.bytes)
            isolated = isolating.isolated is not None and bool(rows)
            claims = isolating.claims
            # What is left may be for another: one that holds nothing takes a claimed message
            # at once. Not where ringing would wake this consumer first, or was done before.
            for_others = claims is not None and not isolating.own_claim
            if left and not notification and (for_others or not (blocked or claims)):
                transaction.notify(queue)
            held_back = blocked and left and claims is None
            if held_back or claims is not None or isolated:
                # It asks again when it is done with what it holds, or in a second.
                next_due = 1000 if next_due < 0 else min(next_due, 1000)
        deliveries = _deliveries(queue, rows, token, no_ack)
        open_ = left and not (held_back or claims is not None or isolated)
        return Reservation(
            deliveries, next_due, lease_ms, open_, held_back, claims is not None, isolated
        )

    def _hold(
        self,
        transaction: Transaction,
        taking: Taking,
        rows: Sequence[Row],
        token: int,
        lease_ms: int,
        no_ack: bool,
        alone: bool,
    ) -> None:
        queue = taking.queue
        if taking.counts_bytes:
            taking.bytes += sum(map(size_of, rows))
        again = sum(row[1] is not None for row in rows)
        if no_ack:
            transaction.executemany(
                "DELETE FROM envelopes WHERE id = ?", [(row[5],) for row in rows]
            )
            transaction.executemany(
                "DELETE FROM messages WHERE queue = ? AND tag = ?", [(queue, r[0]) for r in rows]
            )
            transaction.execute(
                "UPDATE queues SET acked = acked + ?, redelivered = redelivered + ? WHERE id = ?",
                (len(rows), again, queue),
            )
            return
        until, consumer = transaction.now + lease_ms, self.consumer
        transaction.executemany(
            "UPDATE messages SET state = 2, position = ?, token = ?, owner = ?, reason = ? "
            "WHERE queue = ? AND tag = ?",
            [
                (until, token + i, consumer, ISOLATED if alone else None, queue, row[0])
                for i, row in enumerate(rows, 1)
            ],
        )
        transaction.execute(
            "UPDATE queues SET token = token + ?, redelivered = redelivered + ? WHERE id = ?",
            (len(rows), again, queue),
        )

    @essential
    def hand_back(self, queue: str, deliveries: Sequence[Delivery]) -> int:
        """Store again what was taken with *no_ack* and never handed out."""
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return 0
            back = size = 0
            for item in deliveries:
                if transaction.execute(
                    "SELECT 1 FROM messages WHERE queue = ? AND tag = ?", (row.id, item.tag)
                ).fetchone():
                    continue
                envelope = transaction.execute(
                    "INSERT INTO envelopes (envelope) VALUES (?)", (item.envelope,)
                ).lastrowid
                expires = None if item.expires_ms < 0 else item.expires_ms
                failed = None if item.failed < 0 else item.failed
                place = int(item.place)
                transaction.execute(
                    "INSERT INTO messages (queue, tag, state, position, score, failed, expires, "
                    "envelope) VALUES (?, ?, 0, ?, ?, ?, ?, ?)",
                    (row.id, item.tag, place, place, failed, expires, envelope),
                )
                back += 1
                size += len(item.envelope or b"")
            if back:
                transaction.execute(
                    "UPDATE queues SET acked = acked - ? WHERE id = ?", (back, row.id)
                )
                if row.max_bytes is not None:
                    count_down_bytes(transaction, row.id, -size)
                if not row.paused:
                    transaction.notify(queue)
            return back

    def post_reserve(
        self,
        queue: str,
        n: int,
        lease_ms: int,
        no_ack: bool,
        on_result: OnResult[Reservation],
        company: int = HOLDING,
    ) -> None:
        """Take now what :meth:`reserve` takes; it comes when it is asked for."""
        self.post(lambda: self.reserve(queue, n, lease_ms, no_ack, company), on_result)

    def post_promote(self, queue: str, on_result: OnResult[Promoted]) -> None:
        """Make ready what is due, and notify; what has expired is removed before."""
        self.post(lambda: self._promote(queue), on_result)

    @essential
    def _promote(self, queue: str) -> Promoted:
        with self.write() as transaction:
            row = transaction.execute(SELECT, (transaction.prefix, queue)).fetchone()
            if row is None:
                return Promoted(-1, False)
            queue_id, notification, paused = row[0], row[4], row[5]
            taking = Taking(transaction, row)
            if expired := overdue(transaction, queue_id):  # so that none of it is promoted
                taking.expire(expired)
            next_due_ms = taking.promote()
            if taking.bytes:
                count_down_bytes(transaction, queue_id, taking.bytes)
            left = not paused and taking.any_ready()
            if left and not notification:
                transaction.notify(queue)
        return Promoted(next_due_ms, left)

    def post_ack(self, queue: str, tags: Sequence[str], on_result: OnResult[int]) -> None:
        """Finish messages, whoever holds their lease and wherever they are."""
        self.post(lambda: self._ack(queue, tags), on_result)

    @essential
    def _ack(self, queue: str, tags: Iterable[str]) -> int:
        with self.write() as transaction:
            row = transaction.execute(
                "SELECT id, max_bytes FROM queues WHERE prefix = ? AND name = ?",
                (transaction.prefix, queue),
            ).fetchone()
            if row is None:
                return 0
            queue_id, found, size = row[0], 0, 0
            for tag in tags:
                message = transaction.execute(
                    "SELECT envelope, state FROM messages WHERE queue = ? AND tag = ?",
                    (queue_id, tag),
                ).fetchone()
                if message is None:
                    continue
                if row[1] is not None and message[1] in (READY, DELAYED):
                    size += transaction.sizes(queue_id, [tag])
                transaction.execute("DELETE FROM envelopes WHERE id = ?", (message[0],))
                transaction.execute(
                    "DELETE FROM messages WHERE queue = ? AND tag = ?", (queue_id, tag)
                )
                found += 1
            if found:
                transaction.execute(
                    "UPDATE queues SET acked = acked + ? WHERE id = ?", (found, queue_id)
                )
            if size:
                count_down_bytes(transaction, queue_id, size)
            return found

    def post_expire(self, queue: str, on_result: OnResult[bool]) -> None:
        """Remove messages beyond their time to live; the result is whether there are more."""
        self.post(lambda: self._expire(queue), on_result)

    @essential
    def _expire(self, name: str) -> bool:
        with self.write() as transaction:
            queue = transaction.queue(name)
            expired = overdue(transaction, queue.id) if queue is not None else []
            if queue is None or not expired:
                return False
            if queue.max_bytes is not None:
                count_down_bytes(transaction, queue.id, transaction.sizes(queue.id, expired))
            expire(transaction, queue.id, expired, queue.dead_expired)
            return len(expired) == BATCH
