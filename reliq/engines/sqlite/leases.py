"""Leases after they were granted: given back, renewed, or ended."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...store.batches import batches
from ...store.values import How, Lease, Lost, Released, Returned
from .base import StoreBase
from .disk_reserve import essential
from .redelivery import Back, backoff, dead_letter, limit_of, put_back
from .transaction import HELD_BY_MOVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.protocol import OnResult


class SqliteLeases(StoreBase):
    """What becomes of leases while their consumer lives."""

    def release(self, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back to their old place; a requeued one is counted."""
        result = Released([], [])
        for batch in batches(leases):
            self._release(queue, how, batch, result)
        return result

    @essential
    def _release(self, name: str, how: How, leases: Sequence[Lease], result: Released) -> None:
        with self.write() as transaction:
            queue = transaction.queue(name)
            if queue is None:
                result.refused.extend(lease.tag for lease in leases)
                return
            limit = limit_of(queue, self._delivery_limit)
            returned: list[Back] = []
            died: list[Back] = []
            refused: list[str] = []
            for tag, token in leases:
                row = transaction.execute(
                    "SELECT failed, owner FROM messages "
                    "WHERE queue = ? AND tag = ? AND state = 2 AND token = ? AND position < ?",
                    (queue.id, tag, token, HELD_BY_MOVE),
                ).fetchone()
                if row is None:
                    refused.append(tag)
                    continue
                count, owner = row
                wait = 0
                if how == "nacked":
                    count = (count or 0) + 1
                    wait = backoff(self._backoff_ms, count)
                    if 0 < limit <= count:
                        died.append(Back(tag, count, 0, owner))
                        continue
                elif how == "released":
                    count = count or 0
                returned.append(Back(tag, count, wait, owner))
            dead_letter(transaction, queue.id, died, "nacked")
            put_back(transaction, queue, returned)
            if returned:
                transaction.execute(
                    f"UPDATE queues SET {how} = {how} + ? WHERE id = ?",  # noqa: S608 - our words
                    (len(returned), queue.id),
                )
                transaction.notify(name)
        result.refused.extend(refused)
        for item in died:
            result.dead.append(Returned(item.tag, item.failed or 0, self.consumer, None))

    def post_renew(
        self, queue: str, lease_ms: int, leases: Sequence[Lease], on_result: OnResult[Lost]
    ) -> None:
        """Extend leases; the result comes once for each batch."""
        for batch in batches(leases):
            self.post(partial(self._renew, queue, lease_ms, batch), on_result)

    def post_end_leases(
        self, queue: str, leases: Sequence[Lease], on_result: OnResult[Lost]
    ) -> None:
        """End leases now; the result comes once for each batch."""
        self.post_renew(queue, 0, leases, on_result)

    @essential
    def _renew(self, name: str, lease_ms: int, leases: Sequence[Lease]) -> Lost:
        lost, gone = [], []
        with self.write() as transaction:
            queue = transaction.queue(name)
            queue_id = queue.id if queue else 0
            if lease_ms > 0 and queue and queue.lease is not None:
                lease_ms = queue.lease
            # An ended lease is told by its deadline of 0 from one that merely ran out.
            until = transaction.now + lease_ms if lease_ms > 0 else 0
            for tag, token in leases:
                extended = transaction.execute(
                    "UPDATE messages SET position = ? "
                    "WHERE queue = ? AND tag = ? AND state = 2 AND token = ? AND position < ?",
                    (until, queue_id, tag, token, HELD_BY_MOVE),
                ).rowcount
                if extended:
                    continue
                lost.append(tag)
                found = transaction.execute(
                    "SELECT 1 FROM messages WHERE queue = ? AND tag = ?", (queue_id, tag)
                ).fetchone()
                if found is None:
                    gone.append(tag)
        return Lost(lost, gone, lease_ms)

    def leases_of(self, queue: str, consumer: str) -> list[Lease]:
        """Return the leases of *consumer*: of one connection."""
        with self.read() as transaction:
            rows = transaction.execute(
                "SELECT m.tag, m.token FROM queues q JOIN messages m ON m.queue = q.id "
                "WHERE q.prefix = :prefix AND q.name = :queue AND m.state = 2 AND "
                "(m.owner = :owner OR (:owner LIKE '%/' AND "
                "substr(m.owner, 1, length(:owner)) = :owner)) ORDER BY m.tag",
                {"prefix": transaction.prefix, "queue": queue, "owner": consumer},
            ).fetchall()
        return [Lease(tag, str(token)) for tag, token in rows]

    def leases_of_session(self, queue: str, session: str) -> list[Lease]:
        """Return the leases of all connections of *session*: their names begin with its own."""
        return self.leases_of(queue, session + "/")
