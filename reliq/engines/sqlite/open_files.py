"""Which files this process has open: closed while it forks, and left behind by its children.

A file that is open across a fork is not locked in the child: SQLite takes a file that it has
open to be locked by this process already, whoever that was. Once the parent is gone, the
next to close the file clears the log away under the child, with all that it has stored
since. So no file is open while the process forks; each is opened again when it is used next.
"""

from __future__ import annotations

import sqlite3
import weakref
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from ...forks import OwnLock, Part, register
from .inherited import leave

if TYPE_CHECKING:
    from ...forks import Lock
    from .location import Location

# For so long a fork waits for a thread that is in the middle of a transaction.
_FORK_WAIT_S = 5.0
_FORK_LOOK_S = 0.02


class Opening(Protocol):
    """What a connection does with its file when the process forks, or another one is opened."""

    @property
    def lock(self) -> Lock:
        """Held while the file is used."""

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""

    def suspend(self) -> None:
        """Close the file until it is used next, unless it is in use; under `lock`."""

    def forget(self) -> None:
        """Be closed, in a child: what was open is the parent's."""

    def clear_away_if_moved(self, path: str) -> None:
        """Remove what the file has left at *path*, where another file is now."""


class _OpenFiles:
    """The connections of this process, and the files that they have open."""

    opening = OwnLock(reentrant=True)
    """Held while a file is opened, and while the process forks."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Opening] = weakref.WeakSet()
        self._open: dict[sqlite3.Connection, tuple[Location, Lock]] = {}
        self._forking()

    def _forking(self) -> None:
        self._suspended: list[tuple[Opening, Lock]] = []
        self._held: Lock | None = None

    def know(self, connection: Opening) -> None:
        """See to the file of *connection* from now on."""
        self._connections.add(connection)

    def note(self, raw: sqlite3.Connection, where: Location, lock: Lock) -> None:
        """Remember that *raw* is open; *lock* is held while it is used."""
        self._open[raw] = where, lock

    def close(self, raw: sqlite3.Connection | None) -> None:
        """Close *raw*, whatever it is in the middle of."""
        if raw is not None:
            self._open.pop(raw, None)
            with suppress(sqlite3.Error):
                raw.close()

    def clear_away(self, path: str) -> None:
        """Let each connection that is open to a file that was at *path* clear its log away.

        It would do so with its next transaction. Else the log of that file lies beside the one
        that is opened now.
        """
        for connection in list(self._connections):
            connection.clear_away_if_moved(path)

    # -- at a fork

    def hold(self) -> None:
        deadline = monotonic() + _FORK_WAIT_S
        self._held = self.opening
        self._held.acquire()
        for connection in list(self._connections):
            lock = connection.lock
            # Whose file is closed may wait for us, to open it.
            while connection.is_open:
                if lock.acquire(timeout=_FORK_LOOK_S):
                    self._suspended.append((connection, lock))
                    connection.suspend()
                    break
                if monotonic() > deadline:
                    break

    def release(self) -> None:
        while self._suspended:
            self._suspended.pop()[1].release()
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def forget(self) -> None:
        # What a fork in the middle of a transaction, or one that ran no hooks, has left open.
        self._forking()
        connections = list(self._connections)
        leave(self._open)
        for connection in connections:
            connection.forget()


OPEN_FILES = _OpenFiles()
register(Part("files", hold=OPEN_FILES.hold, release=OPEN_FILES.release, forget=OPEN_FILES.forget))
