"""Queues of a file: declared, described, purged, and deleted with everything in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...message.queue_arguments import is_auto_delete
from ...store.inspection import Told
from ...store.limits import BATCH, OUTLIVES_MS
from ...store.unreadable import left_out
from ...store.values import Layout, QueueDeclared, QueueDeleted
from .base import StoreBase
from .disk_reserve import essential
from .exchanges import unbind
from .job_events import keep_events
from .transaction import DELAYED, READY

if TYPE_CHECKING:
    from .transaction import QueueRow, Transaction

# What transactions need of a declaration, by the columns that hold it.
_NUMBERS = (
    "auto_delete",
    "expires",
    "message_ttl",
    "max_priority",
    "lease",
    "delivery_limit",
    "max_length",
    "max_bytes",
    "dead_expired",
)
_TEXTS = ("overflow", "dead_letter_exchange", "dead_letter_routing_key")
_EVERYTHING = (
    "messages",
    "deaths",
    "candidates",
    "moves",
    "job_events",
    "history",
    "failed_deliveries",
)


def column_value(name: str, text: str | None) -> int | str | None:
    """Return what the column of an argument holds where its text is *text*; None: nothing."""
    if name in _TEXTS:
        return text
    return int(text) if text else None


def waiting(transaction: Transaction, queue: int) -> int:
    """Return how many messages are ready or delayed."""
    (count,) = transaction.execute(
        "SELECT count(*) FROM messages WHERE queue = ? AND state IN (?, ?)", (queue, READY, DELAYED)
    ).fetchone()
    return int(count)


def users(transaction: Transaction, name: str) -> int:
    """Return how many consumers a queue has, declared or not."""
    (count,) = transaction.execute(
        "SELECT count(*) FROM attached WHERE prefix = ? AND queue = ?", (transaction.prefix, name)
    ).fetchone()
    return int(count)


def remove(transaction: Transaction, name: str, row: QueueRow) -> None:
    """Delete a queue with everything in it, its bindings, and what was to go with these.

    Its consumers stay noted: they listen on, and are those of a queue that is made anew.
    """
    transaction.execute(
        "DELETE FROM envelopes WHERE id IN (SELECT envelope FROM messages WHERE queue = ?)",
        (row.id,),
    )
    for table in _EVERYTHING:
        transaction.execute(f"DELETE FROM {table} WHERE queue = ?", (row.id,))  # noqa: S608 - ours
    transaction.execute("DELETE FROM queues WHERE id = ?", (row.id,))
    transaction.execute(
        "DELETE FROM passes WHERE prefix = ? AND queue = ?", (transaction.prefix, name)
    )
    # What makes a retry no second message outlives it by a minute: one may be on its way.
    transaction.execute(
        "UPDATE publishers SET until = min(until, ?) WHERE prefix = ? AND queue = ?",
        (transaction.now + OUTLIVES_MS, transaction.prefix, name),
    )
    for exchange, declaration in unbind(transaction, name).items():
        if declaration is not None and is_auto_delete(declaration):
            transaction.execute(
                "DELETE FROM exchanges WHERE prefix = ? AND name = ?",
                (transaction.prefix, exchange),
            )


class SqliteQueues(StoreBase):
    """What a store knows of queues."""

    def list_queue(self, queue: str) -> None:
        """Do nothing: a queue is visible as soon as it exists."""

    @essential
    def declare_queue(
        self, queue: str, passive: bool, arguments: bytes, meta: dict[str, str]
    ) -> QueueDeclared:
        """Create *queue* with its arguments, or say what there is."""
        if passive:
            with self.read() as transaction:
                row = transaction.queue(queue)
                if row is None:
                    return QueueDeclared("missing", 0, 0, b"")
                return self._declared(
                    transaction, "existed", queue, row, row.arguments or arguments
                )
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                transaction.execute(
                    "INSERT INTO queues (prefix, name) VALUES (?, ?)", (self._prefix, queue)
                )
                self._describe(transaction, queue, arguments, meta)
                return QueueDeclared("created", 0, users(transaction, queue), arguments)
            if row.arguments is None:  # a publish created it: it takes these
                self._describe(transaction, queue, arguments, meta)
            elif row.arguments != arguments:
                return self._declared(transaction, "differs", queue, row, row.arguments)
            elif row.expires is not None:
                # Only then: a worker must be able to start when the disk is full.
                transaction.execute(
                    "UPDATE queues SET used_at = ? WHERE id = ?", (transaction.now, row.id)
                )
            return self._declared(transaction, "existed", queue, row, arguments)

    @staticmethod
    def _describe(
        transaction: Transaction, queue: str, arguments: bytes, meta: dict[str, str]
    ) -> None:
        values = [column_value(name, meta.get(name)) for name in (*_NUMBERS, *_TEXTS)]
        columns = ", ".join(f"{name} = ?" for name in (*_NUMBERS, *_TEXTS))
        transaction.execute(
            f"UPDATE queues SET arguments = ?, used_at = ?, {columns} "  # noqa: S608
            "WHERE prefix = ? AND name = ?",
            (
                arguments,
                transaction.now,
                *values,
                transaction.prefix,
                queue,
            ),
        )

    @staticmethod
    def _declared(
        transaction: Transaction, outcome: str, queue: str, row: QueueRow, arguments: bytes
    ) -> QueueDeclared:
        count = waiting(transaction, row.id)
        return QueueDeclared(outcome, count, users(transaction, queue), arguments)  # type: ignore[arg-type]

    @essential
    def create_queue(self, queue: str) -> None:
        """Make *queue* unless there is one; it takes the arguments of its first declaration."""
        with self.write() as transaction:
            transaction.execute(
                "INSERT INTO queues (prefix, name) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (self._prefix, queue),
            )

    @essential
    def delete_queue(
        self, queue: str, *, if_empty: bool = False, if_unused: bool = False, if_idle: bool = False
    ) -> QueueDeleted:
        """Delete *queue* and everything in it, if the conditions hold. Atomic."""
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return QueueDeleted("missing", 0)
            count, consumers = waiting(transaction, row.id), users(transaction, queue)
            if if_empty and count:
                return QueueDeleted("not_empty", count)
            if if_unused and consumers:
                return QueueDeleted("in_use", consumers)
            if if_idle:
                if row.expires is None:
                    return QueueDeleted("not_idle", -1)
                since = transaction.now if consumers or row.used_at is None else row.used_at
                left = since + row.expires - transaction.now
                if consumers:
                    transaction.execute(
                        "UPDATE queues SET used_at = ? WHERE id = ?", (transaction.now, row.id)
                    )
                if left > 0:
                    return QueueDeleted("not_idle", left)
            remove(transaction, queue, row)
            return QueueDeleted("deleted", count)

    # -- partitions: there is one of each queue

    def layout(self, queue: str) -> Layout | None:
        """Return that there is one; None where there is no such queue."""
        with self.read() as transaction:
            return None if transaction.queue(queue) is None else Layout(1, 1)

    def lay_out(self, queue: str, partitions: int, end: int = 0) -> Layout | None:
        """Change nothing."""
        del partitions, end
        return self.layout(queue)

    def lower_end(self, queue: str, end: int, to: int) -> Layout | None:
        """Change nothing."""
        del end, to
        return self.layout(queue)

    def open_partition(self, partition: str, partitions: int, *, closed: bool = False) -> bool:
        """Find none."""
        del partition, partitions, closed
        return False

    def remove_drained(self, partition: str) -> bool:
        """Find none."""
        del partition
        return True

    def purge(self, queue: str) -> int:
        """Remove what waits in *queue*, some hundred messages a step; return how many."""
        total = 0
        while removed := self._purge_some(queue):
            total += removed
        return total

    @essential
    def _purge_some(self, queue: str) -> int:
        with self.write() as transaction:
            row = transaction.queue(queue)
            if row is None:
                return 0
            tags = [
                tag
                for (tag,) in transaction.execute(
                    "SELECT tag FROM messages WHERE queue = ? AND state IN (?, ?) LIMIT ?",
                    (row.id, READY, DELAYED, BATCH),
                )
            ]
            if not tags:
                return 0
            size = transaction.sizes(row.id, tags) if row.max_bytes is not None else 0
            keep_events(transaction, row.id, tags, "gone", "purged")
            transaction.drop(row.id, tags)
            transaction.execute(
                "UPDATE queues SET purged = purged + ?, waiting_bytes = max(waiting_bytes - ?, 0) "
                "WHERE id = ?",
                (len(tags), size, row.id),
            )
            return len(tags)

    def told(self) -> Told:
        """Return the names of all queues: one file has them all."""
        return Told(self.queues())

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        with self.read() as transaction:
            found = transaction.execute(
                "SELECT CAST(name AS BLOB), typeof(name) FROM queues WHERE prefix = ?",
                (self._prefix,),
            ).fetchall()
        names: list[str] = []
        wrong: list[str] = []
        for name, kind in found:
            text = (name or b"").decode("utf-8", "surrogateescape")
            readable = kind == "text" and text.encode("utf-8", "replace") == name
            (names if readable else wrong).append(text)
        left_out(self.broker, "names of queues", wrong)
        return sorted(names)
