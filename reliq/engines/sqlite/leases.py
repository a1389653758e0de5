"""Leases after they were granted: given back, renewed, or ended."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...store.batches import batches
from ...store.values import How, Lease, Lost, Released, Returned
from .base import StoreBase
from .disk_reserve import essential
from .redelivery import Back, backoff, dead_letter, limit_of, note_failures, put_back
from .transaction import HELD_BY_MOVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.protocol import OnResult
    from .transaction import Transaction


def _set_deadline(
    transaction: Transaction, queue: int, tag: str, token: str, deadline_ms: int
) -> bool:
    """Set when a lease runs out, unless it is lost; whether it was not."""
    changed = transaction.execute(
        "UPDATE messages SET position = ? "
        "WHERE queue = ? AND tag = ? AND state = 2 AND token = ? AND position < ?",
        (deadline_ms, queue, tag, token, HELD_BY_MOVE),
    )
    return changed.rowcount > 0


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
            if how == "nacked":
                note_failures(transaction, queue.id, "requeued", [*returned, *died])
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
        self, queue: str, leases: Sequence[Lease], on_result: OnResult[list[str]]
    ) -> None:
        """End leases now; the result comes once for each batch."""
        for batch in batches(leases):
            self.post(partial(self._end_leases, queue, batch), on_result)

    @essential
    def _renew(self, name: str, lease_ms: int, leases: Sequence[Lease]) -> Lost:
        lost, gone = [], []
        with self.write() as transaction:
            queue = transaction.queue(name)
            queue_id = queue.id if queue else 0
            if queue and queue.lease is not None:
                lease_ms = queue.lease
            until = transaction.now + lease_ms
            for tag, token in leases:
                if _set_deadline(transaction, queue_id, tag, token, until):
                    continue
                lost.append(tag)
                found = transaction.execute(
                    "SELECT 1 FROM messages WHERE queue = ? AND tag = ?", (queue_id, tag)
                ).fetchone()
                if found is None:
                    gone.append(tag)
        return Lost(lost, gone, lease_ms)

    @essential
    def _end_leases(self, name: str, leases: Sequence[Lease]) -> list[str]:
        with self.write() as transaction:
            queue = transaction.queue(name)
            queue_id = queue.id if queue else 0
            # An ended lease is told by its deadline of 0 from one that merely ran out.
            return [
                tag
                for tag, token in leases
                if not _set_deadline(transaction, queue_id, tag, token, 0)
            ]

    def leases_of(self, queue: str, consumer: str) -> list[Lease]:
        """Return the leases of *consumer*: of one connection."""
        return self._leases(queue, consumer, of_session=False)

    def leases_of_session(self, queue: str, session: str) -> list[Lease]:
        """Return the leases of all connections of *session*."""
        return self._leases(queue, session, of_session=True)

    def _leases(self, queue: str, owner: str, *, of_session: bool) -> list[Lease]:
        with self.read() as transaction:
            # The id of a consumer is that of its session, a slash and a number.
            rows = transaction.execute(
                "SELECT m.tag, m.token FROM queues q JOIN messages m ON m.queue = q.id "
                "WHERE q.prefix = :prefix AND q.name = :queue AND m.state = 2 AND "
                "CASE WHEN :of_session THEN substr(m.owner, 1, length(:owner) + 1) = :owner || '/' "
                "ELSE m.owner = :owner END ORDER BY m.tag",
                {
                    "prefix": transaction.prefix,
                    "queue": queue,
                    "owner": owner,
                    "of_session": of_session,
                },
            ).fetchall()
        return [Lease(tag, str(token)) for tag, token in rows]
