"""The history of queues in a file: blocks of snapshots, and what is known of the last one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ...errors import BrokerRefused
from ...store.history import GAUGES, Snapshot, block_of, counted, is_noted, noted, snapshots
from ...store.limits import HISTORY_BLOCKS, MINUTE_MS
from ...store.unreadable import left_out
from .base import StoreBase
from .measuring import status_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.inspection import QueueStatus
    from ...store.protocol import OnResult
    from .transaction import Transaction


class SqliteHistory(StoreBase):
    """What a store keeps of its queues' past."""

    def post_snapshots(
        self, queues: Sequence[str], on_result: OnResult[int], every_ms: int = MINUTE_MS
    ) -> None:
        """Note counts and ledger of *queues* now, each once a minute."""
        self.post(lambda: self._snapshots(queues, every_ms), on_result)

    def _snapshots(self, queues: Sequence[str], every_ms: int) -> int:
        for queue in queues:
            with suppress(BrokerRefused):  # a disk that is full, a queue with a row of another's
                status = self._counts(queue, every_ms)
                if status is not None:
                    self._note(queue, status, every_ms)
        with self.read() as transaction:
            return every_ms - transaction.now % every_ms

    def _counts(self, queue: str, every_ms: int) -> QueueStatus | None:
        """Count, where that is due. It takes long where there are many messages: nobody waits."""
        with self.read() as transaction:
            row = transaction.queue(queue)
            if row is None or row.auto_delete or row.expires is not None:
                return None
            if is_noted(_last(transaction, row.id), transaction.now, every_ms):
                return None
            return status_of(transaction, queue, checked=False)

    def _note(self, queue: str, status: QueueStatus, every_ms: int) -> None:
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return
            last = _last(transaction, row.id)
            if is_noted(last, transaction.now, every_ms):
                return
            block = block_of(transaction.now, every_ms)
            found = transaction.execute(
                "SELECT records FROM history WHERE queue = ? AND block = ?", (row.id, block)
            ).fetchone()
            gauges = [getattr(status, name) for name in GAUGES]
            before = found[0] if found else b""
            new = noted(last, before, transaction.now, gauges, counted(status.ledger), every_ms)
            if found is None:  # a clock that was set back leaves some that are to come
                transaction.execute(
                    "DELETE FROM history WHERE queue = ? AND (block < ? OR block > ?)",
                    (row.id, block - HISTORY_BLOCKS, block),
                )
            transaction.execute(
                "INSERT OR REPLACE INTO history VALUES (?, ?, ?)", (row.id, block, new.records)
            )
            transaction.execute("UPDATE queues SET noted = ? WHERE id = ?", (new.last, row.id))

    def history(
        self, queue: str, since_ms: int, now_ms: int, every_ms: int = MINUTE_MS
    ) -> list[Snapshot]:
        """Return the snapshots of *queue* from *since_ms* on, oldest first."""
        with self.read() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return []
            blocks = dict(
                transaction.execute(
                    "SELECT block, records FROM history WHERE queue = ?", (row.id,)
                ).fetchall()
            )
        try:
            return snapshots(blocks, since_ms, now_ms, every_ms)
        except (ValueError, TypeError):
            left_out(self.broker, "histories of queues", [queue])
            return []


def _last(transaction: Transaction, queue: int) -> str:
    (last,) = transaction.execute("SELECT noted FROM queues WHERE id = ?", (queue,)).fetchone()
    return str(last)
