"""One transaction of a store: begun and committed whole, and who is notified of it afterwards.

Knows what several parts of the store ask of a queue inside it: its row, its notification,
what its messages have in bytes, and what leaves it.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...errors import BrokerRefused, ReliqError
from ...forks import under_way
from ...store.limits import RANK
from . import notifications

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from .connection import Connection

Row: TypeAlias = "tuple[Any, ...]"
"""One that a SELECT has found."""

READY, DELAYED, UNACKED, DEAD = range(4)
HELD_BY_MOVE = 2**62
"""The deadline of what a move holds."""
# For so long a transaction waits where the process is about to fork.
_GIVE_WAY_S = 0.0005


class QueueRow(NamedTuple):
    """A queue's row: see schema.sql."""

    id: int
    published: int
    promoted: int
    token: int
    move: int
    notification: int
    paused: int
    used_at: int | None
    check_at: int
    passed: int
    pass_due: int
    spared_from: int
    spared_until: int
    arguments: bytes | None
    auto_delete: int | None
    expires: int | None
    message_ttl: int | None
    lease: int | None
    delivery_limit: int | None
    max_length: int | None
    max_bytes: int | None
    overflow: str | None
    dead_letter_exchange: str | None
    dead_expired: int | None


_SELECT_QUEUE = f"SELECT {', '.join(QueueRow._fields)} FROM queues WHERE prefix = ? AND name = ?"  # noqa: S608


def rank_score(tag: str, sequence: int) -> int:
    """Return the place of *tag* among the ready: the rank that it begins with, then *sequence*."""
    return int(tag[:2], 16) * RANK + sequence


# What a value of another type than the column's makes of a transaction.
_MALFORMED = (TypeError, ValueError, ArithmeticError)


class Transaction:
    """One transaction of one store; ``with store.write() as transaction``. Notifies after it."""

    now: int
    """Ms since the epoch, read inside the transaction."""

    def __init__(self, connection: Connection, prefix: str, *, reading: bool = False) -> None:
        self._connection = connection
        self.prefix = prefix
        self._to_notify: list[tuple[str, str]] = []
        # One that only reads sees all at one instant too, and is in nobody's way.
        self._reading = reading

    def __enter__(self) -> Transaction:  # noqa: PYI034 - typing.Self needs Python 3.11
        """Begin the transaction, and return self."""
        connection = self._connection
        if under_way():
            # Who forks waits for the lock, and would not get it from a busy thread.
            time.sleep(_GIVE_WAY_S)
        connection.lock.acquire()
        try:
            raw = connection.begin(self._reading)
            self.now = time.time_ns() // 1_000_000
            self.execute = raw.execute
            self.executemany = raw.executemany
        except sqlite3.Error as exc:
            try:
                raise connection.failed(exc) from exc
            finally:
                connection.lock.release()
        except BaseException:
            # A signal's, a soft time limit perhaps: the transaction may have begun.
            connection.undo()
            connection.lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        """Commit and notify, or undo what was done."""
        connection = self._connection
        try:
            to_notify, self._to_notify = self._to_notify, []
            if exc is None:
                try:
                    self.execute("COMMIT")
                except sqlite3.Error as failed:
                    raise connection.failed(failed) from failed
            elif isinstance(exc, sqlite3.Error):
                raise connection.failed(exc) from exc
            elif isinstance(exc, _MALFORMED) and not isinstance(exc, ReliqError):
                raise BrokerRefused(
                    f"{connection.where}: the file holds what reliq did not write there "
                    f"({type(exc).__name__}: {exc}); find out who writes to it"
                ) from exc
            else:
                return
        finally:
            # Whatever came in between: nobody else could write while it is open.
            connection.undo()
            connection.lock.release()
        self._notify(to_notify)

    def _notify(self, to_notify: list[tuple[str, str]]) -> None:
        """Wake those who were taken out of the waiters; for one that is gone, the next."""
        while to_notify:
            gone = [
                (notification, queue)
                for notification, queue in to_notify
                if not notifications.notify(self._connection.where, notification, queue)
            ]
            if not gone:
                return
            with suppress(ReliqError), Transaction(self._connection, self.prefix) as transaction:
                for _, queue in gone:
                    transaction.notify(queue)
                # Sent from here, so that this loop and not the inner one goes on.
                gone, transaction._to_notify = transaction._to_notify, []
            to_notify = gone

    def queue(self, name: str) -> QueueRow | None:
        """Return the row of a queue; None where there is no such queue."""
        row = self.execute(_SELECT_QUEUE, (self.prefix, name)).fetchone()
        return None if row is None else QueueRow._make(row)

    def notify(self, name: str) -> None:
        """Notify a queue: once that is stored, one of those who wait is woken.

        Where nobody waits, the next one to begin hears it.
        """
        row = self.execute(
            "SELECT notification FROM waiters WHERE prefix = ? AND queue = ? LIMIT 1",
            (self.prefix, name),
        ).fetchone()
        if row is None:
            self.execute(
                "UPDATE queues SET notification = 1 "
                "WHERE prefix = ? AND name = ? AND notification = 0",
                (self.prefix, name),
            )
            return
        self.execute("DELETE FROM waiters WHERE notification = ?", row)
        self._to_notify.append((row[0], name))

    def drop(self, queue: int, tags: Iterable[str]) -> int:
        """Remove messages, in whatever state, with their envelopes; return how many there were."""
        dropped = 0
        for tag in tags:
            self.execute(
                "DELETE FROM envelopes WHERE id = "
                "(SELECT envelope FROM messages WHERE queue = ? AND tag = ?)",
                (queue, tag),
            )
            dropped += self.execute(
                "DELETE FROM messages WHERE queue = ? AND tag = ?", (queue, tag)
            ).rowcount
        return dropped

    def count_deaths(self, queue: int, reason: str, count: int) -> None:
        """Note in the ledger that so many messages have become dead letters."""
        if not count:
            return
        self.execute(
            "UPDATE queues SET dead_lettered = dead_lettered + ? WHERE id = ?", (count, queue)
        )
        self.execute(
            "INSERT INTO deaths VALUES (?, ?, ?) "
            "ON CONFLICT (queue, reason) DO UPDATE SET count = count + excluded.count",
            (queue, reason, count),
        )

    def sizes(self, queue: int, tags: Iterable[str]) -> int:
        """Return how many bytes the envelopes of messages have together."""
        return sum(
            row[0]
            for tag in tags
            for row in self.execute(
                "SELECT length(e.envelope) FROM messages m JOIN envelopes e ON e.id = m.envelope "
                "WHERE m.queue = ? AND m.tag = ?",
                (queue, tag),
            )
        )
