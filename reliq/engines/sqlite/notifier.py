"""The notifier of a file: a FIFO, and rows that say for which queues it waits.

Whoever makes something available takes one waiter out, in the same transaction, and
writes to its FIFO. So one notification wakes one consumer, and who is dead is noticed. Losing
one is harmless: a wait ends by itself, and each pass of restore_visible notifies again.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import BrokerUnavailable, ReliqError
from ...forks import OwnLock, Part, here, register
from ..poll import readable
from . import notifications
from .disk_reserve import essential

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .connection import Connection

_notifiers: weakref.WeakSet[SqliteNotifier] = weakref.WeakSet()


def _forked() -> None:
    # A child must not keep its parent's FIFO open: whoever notifies would not learn of its death.
    for notifier in list(_notifiers):
        notifier.leave_parent()


register(Part("notifiers of files", forget=_forked))


class SqliteNotifier:
    """See :class:`reliq.store.protocol.Notifier`."""

    _waking = OwnLock()

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._closed = False
        self._reset()
        _notifiers.add(self)

    def _reset(self) -> None:
        self._notification = ""
        self._fifo: int | None = None
        self._listening = False
        self._until = 0.0
        self._queues: frozenset[str] = frozenset()
        self._notified: str | None = None
        self._waiter: tuple[int, int] | None = None

    def leave_parent(self) -> None:
        """Close what was inherited from the process that this one was forked from."""
        for fd in (self._fifo, *(self._waiter or ())):
            if fd is not None:
                with suppress(OSError):
                    os.close(fd)
        self._reset()

    @property
    def listening(self) -> bool:
        """Whether a wait is under way."""
        return self._listening and self._connection.alive

    @property
    def queues(self) -> frozenset[str]:
        """The queues of the wait that is under way, or was last."""
        return self._queues

    def descriptors(self) -> Mapping[int, object]:
        """Return the descriptor that becomes readable when a notification comes."""
        return {self._reader(): self}

    def _reader(self) -> int:
        here()  # a parent's FIFO is left
        if self._closed:
            raise BrokerUnavailable(f"{self._connection.where}: the connection is closed")
        if self._fifo is None:
            self._notification = f"{os.getpid()}-{os.urandom(6).hex()}"
            self._fifo = notifications.make(self._connection.where, self._notification)
        return self._fifo

    def make_room(self) -> None:
        """Have room to write where the disk is full: at the cost of the reserve."""
        self._connection.make_room()

    def disable_reconnect(self) -> None:
        """Keep the descriptor, which an event loop watches: it never changes."""

    def listen(self, queues: Sequence[str], timeout_s: float) -> None:
        """Begin to wait, unless a wait is under way; raises BrokerUnavailable."""
        if self.listening:
            return
        fifo = self._reader()
        if not notifications.stands(self._connection.where, self._notification):
            raise BrokerUnavailable(
                f"{self._connection.where}: the notifier of this connection was removed, and with "
                "it all that would wake it: it is made anew when it connects again"
            )
        notified = self._begin_to_wait(queues)
        self._queues = frozenset(queues)
        self._until = monotonic() + timeout_s
        self._listening = True
        self._notified = None
        if notified is not None:
            os.write(fifo, notifications.line(notified))

    @essential
    def _begin_to_wait(self, queues: Sequence[str]) -> str | None:
        """Enter the waiters, or take what was notified before; return that queue."""
        connection = self._connection
        marks = ", ".join("?" * len(queues))
        with connection.lock:
            try:
                raw = connection.begin()
                notified = raw.execute(
                    "SELECT name FROM queues "  # noqa: S608 - marks only
                    f"WHERE prefix = ? AND notification = 1 AND name IN ({marks}) LIMIT 1",
                    (self._prefix, *queues),
                ).fetchone()
                if notified is not None:
                    raw.execute(
                        "UPDATE queues SET notification = 0 WHERE prefix = ? AND name = ?",
                        (self._prefix, *notified),
                    )
                else:
                    raw.executemany(
                        "INSERT OR IGNORE INTO waiters VALUES (?, ?, ?)",
                        [(self._prefix, queue, self._notification) for queue in queues],
                    )
                raw.execute("COMMIT")
            except sqlite3.Error as exc:
                raise connection.failed(exc) from exc
            finally:
                connection.undo()
        return None if notified is None else str(notified[0])

    def _stop_waiting(self) -> None:
        """Leave the waiters, so that no notification goes to one who does not listen."""
        self._listening = False
        if self._connection.alive:
            self._connection.statement(
                "DELETE FROM waiters WHERE notification = ?", (self._notification,)
            )

    def take_notification(self) -> str | None:
        """Return the queue that ended the last wait, once; None when its time was up."""
        notified, self._notified = self._notified, None
        return notified

    def receive(self) -> bool:
        """Take what has come; True when the wait is over. Raises BrokerUnavailable."""
        if self._fifo is not None:
            told = notifications.read(self._fifo)
            self._notified = next((queue for queue in reversed(told) if queue), self._notified)
            if told and self._listening:
                # A notification has taken us out of the waiters already, unless it was an old one.
                self._stop_waiting()
        if self._listening and monotonic() >= self._until:
            self._stop_waiting()
        return not self._listening

    def end_wait(self) -> None:
        """Let the wait that is under way end without a notification."""
        if self._listening and self._fifo is not None:
            with suppress(BlockingIOError):
                os.write(self._fifo, notifications.line(None))

    def wait(self, timeout_s: float) -> bool:
        """Wait for a notification, :meth:`wake` or *timeout_s*; True when one came."""
        listening = self.listening
        if listening and self.receive():
            return True
        reader = self._open_waiter()
        descriptors = (reader, self._reader()) if listening else (reader,)
        left = min(timeout_s, self._until - monotonic()) if listening else timeout_s
        if reader in readable(descriptors, left):
            with suppress(BlockingIOError):
                os.read(reader, 4096)
        return listening and self.receive()

    def wake(self) -> None:
        """End another thread's :meth:`wait` now."""
        with self._waking:
            if self._waiter is not None:
                with suppress(BlockingIOError, OSError):
                    os.write(self._waiter[1], b"\0")

    def check(self) -> None:
        """Make a wait whose time is up end: an event loop only looks when something comes."""
        if self._listening and monotonic() >= self._until:
            self.end_wait()

    def close(self) -> None:
        """End the wait; a notification on its way is lost, which is harmless."""
        if self._listening:
            with suppress(ReliqError):
                self._stop_waiting()
        self._closed = True
        self._listening = False
        if self._fifo is not None:
            with suppress(OSError):
                Path(notifications.path_of(self._connection.where, self._notification)).unlink()
            os.close(self._fifo)
            self._fifo = None
        self._close_waiter()

    def __del__(self) -> None:
        """Give the descriptors back where nobody closed the notifier."""
        for fd in (self._fifo, *(self._waiter or ())):
            if fd is not None:
                with suppress(OSError):
                    os.close(fd)
        self._fifo = self._waiter = None

    def _open_waiter(self) -> int:
        with self._waking:
            if self._waiter is None:
                self._waiter = os.pipe()
                for fd in self._waiter:
                    os.set_blocking(fd, False)
            return self._waiter[0]

    def _close_waiter(self) -> None:
        with self._waking:
            waiter, self._waiter = self._waiter, None
            for fd in waiter or ():
                with suppress(OSError):
                    os.close(fd)
