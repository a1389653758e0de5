"""What the parts of the SQLite store share: its connection, its steps, and posted results.

A step is one transaction. A posted step is done at once; its result waits until it
is asked for, so that a callback never runs inside the call that posted.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...errors import BrokerRefused, BrokerUnavailable, ReliqError, again
from ...forks import here, under_way
from ...store.limits import RANK
from . import notifications, presence
from .connection import Connection
from .disk_reserve import SIZE
from .location import full
from .notifier import SqliteNotifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from ...options import Options
    from ...store.protocol import OnResult
    from .location import Location

T = TypeVar("T")

READY, DELAYED, UNACKED, DEAD = range(4)
HELD_BY_MOVE = 2**62
"""The deadline of what a move holds."""
# For so long a step waits where the process is about to fork.
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


# What a value of another type than the column's makes of a step.
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
        """Ring the notification of a queue: once it is stored, one of those who wait is woken.

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


class StoreBase:
    """A store's connection to one file."""

    def __init__(
        self, where: Location, options: Options, consumer: str, create: bool = True
    ) -> None:
        self.consumer = consumer
        self.broker = str(where)
        self.where = where
        self.options = options
        self._prefix = options.global_keyprefix
        self._connection = Connection(where, options, create)
        self._transaction = Transaction(self._connection, self._prefix)
        self._reading = Transaction(self._connection, self._prefix, reading=True)
        self._notifier = SqliteNotifier(self._connection, self._prefix)
        # Queue and publisher: whose numbers this connection has stored.
        self._numbered: set[tuple[str, str]] = set()
        self._began = monotonic()
        self.keeps_long = False
        self._results: deque[tuple[OnResult[Any], Any]] = deque()
        self._posting = False
        self._process = here()
        self._pipe: tuple[int, int] | None = None
        self._presence = ""
        self._delivery_limit = options.delivery_limit or 0
        backoff = options.redelivery_backoff or (0.0, 0.0)
        self._backoff_ms = tuple(int(seconds * 1000) for seconds in backoff)
        self._dead_letter_ttl_ms = int(options.dead_letter_ttl * 1000)

    # -- steps

    def write(self) -> Transaction:
        """Return a transaction that may write, for ``with``; all or nothing of it is stored."""
        if self._results and not self._posting:
            self.receive()
        return self._transaction

    def read(self) -> Transaction:
        """Return a transaction that only reads, at one instant."""
        if self._results and not self._posting:
            self.receive()
        return self._reading

    def post(self, do: Callable[[], T], on_result: OnResult[T]) -> None:
        """Do a step now; *on_result* gets its result, or its error, when it is asked for."""
        result: T | ReliqError
        with self._connection.lock:
            if self._process != here():
                self._leave_parent()
            posting, self._posting = self._posting, True
            try:
                result = do()
            except ReliqError as exc:
                if isinstance(exc, BrokerUnavailable) and not self.alive:
                    raise
                result = again(exc)
            finally:
                self._posting = posting
            self._results.append((on_result, result))
            if len(self._results) == 1 and self._pipe is not None:
                with suppress(OSError):
                    os.write(self._pipe[1], b"\0")

    def receive(self) -> None:
        """Hand out the results of what was posted before, without waiting."""
        with self._connection.lock:
            self._hand_out(len(self._results))

    def wait_for_replies(self) -> None:
        """Hand out the results of all that was posted, also while they are handed out."""
        with self._connection.lock:
            while self._results:
                self._hand_out(len(self._results))

    def _hand_out(self, most: int) -> None:
        if self._process != here():
            self._leave_parent()
        try:
            while most > 0 and self._results:
                most -= 1
                on_result, result = self._results.popleft()
                on_result(result)
        finally:
            if not self._results and self._pipe is not None:
                with suppress(OSError):
                    os.read(self._pipe[0], 4096)

    def _leave_parent(self) -> None:
        self._process = here()
        self._results.clear()
        self._presence = ""
        self._close_pipe()

    # -- the connection

    @property
    def notifier(self) -> SqliteNotifier:
        """The FIFO on which a consumer waits."""
        return self._notifier

    @property
    def epoch(self) -> int:
        """How often the file was opened."""
        return self._connection.opened

    @property
    def connected_at(self) -> float:
        """When the file was opened (monotonic clock)."""
        return self._connection.connected_at

    @property
    def alive(self) -> bool:
        """Whether the file is open and has not failed."""
        return self._connection.alive

    def make_room(self) -> None:
        """Have room to write where the disk is full: at the cost of the reserve."""
        self._connection.make_room()

    def require_room(self) -> None:
        """Raise BrokerRefused where the disk is full: only what makes room may go on.

        The file never shrinks: what was consumed left room inside, which will do as well.
        """
        if not self._connection.reserve.keep() and self._connection.free_bytes() < SIZE:
            raise full(self.where)

    def connect(self) -> None:
        """Open the file unless it is open; raises ConfigurationError, BrokerUnavailable."""
        self._connection.require()

    def require_writable(self) -> None:
        """Raise BrokerUnavailable unless the file can be opened; it has no replicas."""
        self._connection.require()

    def close(self) -> None:
        """Close the file for good; what was posted gets a BrokerUnavailable."""
        self._notifier.close()
        if self._presence and self._process == here():
            presence.leave(self.where, self._presence)
            self._presence = ""
        self._connection.close()
        error = BrokerUnavailable(f"{self.where}: the connection is closed")
        with self._connection.lock:
            self._results = deque((on_result, error) for on_result, _ in self._results)
            self.wait_for_replies()
            self._close_pipe()

    def fileno(self) -> int:
        """Return the descriptor that is readable while results wait to be handed out."""
        with self._connection.lock:
            if self._process != here():
                self._leave_parent()
            if self._pipe is None:
                self._pipe = os.pipe()
                for fd in self._pipe:
                    os.set_blocking(fd, False)
                if self._results:
                    os.write(self._pipe[1], b"\0")
            return self._pipe[0]

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        for fd in pipe or ():
            with suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        """Give the pipe back where nobody closed the store."""
        self._close_pipe()

    def disable_reconnect(self) -> None:
        """Never open the file anew: an event loop watches our descriptor."""
        self._connection.disable_reconnect()

    def check(self) -> None:
        """Do nothing: no result is ever overdue."""

    @property
    def waiting(self) -> bool:
        """Whether a result waits to be handed out."""
        return bool(self._results)

    def probe(self) -> None:
        """Raise ReliqError unless the file can be written now. Nothing is."""
        with self.write():
            pass

    def server(self) -> tuple[str, str]:
        """Return (the name under which this connection is present, the name of the file).

        From the first call on others can tell whether this process lives.
        """
        if self._process != here():
            self._leave_parent()
        if not self._presence:
            name = f"{os.getpid()}-{os.urandom(6).hex()}"
            presence.hold(self.where, name)
            presence.sweep(self.where)
            self._presence = name
        return self._presence, self.where.path
