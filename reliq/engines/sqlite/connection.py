"""One connection to the file: opened, shared by threads, left behind by forks.

Owns transactions and their patience; knows nothing of queues. Whoever finds the
file locked tries again in well under a millisecond, up to socket_timeout: SQLite's
own handler sleeps for up to a tenth of a second, many times as long as our
transactions last.
"""

from __future__ import annotations

import sqlite3
import weakref
from contextlib import suppress
from random import uniform
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from ...errors import BrokerUnavailable, ConfigurationError
from ...forks import Lock, OwnLock, Part, here, is_here, register
from .disk_reserve import DiskReserve
from .inherited import leave, require_left
from .location import is_busy, is_shut, moved, translate
from .owners import require_own
from .schema import VERSION, bring_up_to_date, version_of
from .standing import Standing, identity
from .turns import Turns

if TYPE_CHECKING:
    from ...options import Options
    from .location import Location

_SHORTEST_SLEEP_S = 0.00005
_LONGEST_SLEEP_S = 0.002
# Pages in the log before they are written to the file: rarely, as that waits for the disk.
# Of 4096 bytes, as a new file has them. The reserve must have room for it (reserve.py).
_CHECKPOINT_PAGES = 1000
_PAGE = 4096
_OLDEST = (3, 24)  # ON CONFLICT ... DO UPDATE

# For so long a fork waits for a thread that is in the middle of a step.
_FORK_WAIT_S = 5.0
_FORK_LOOK_S = 0.02

# A file that is open across a fork is not locked in the child: SQLite takes a file that it has
# open to be locked by this process already, whoever that was. Once the parent is gone, the
# next to close the file clears the log away under the child, with all that it has stored
# since. So no file is open while the process forks; each is opened again with its next step.
_open: dict[sqlite3.Connection, tuple[Location, Lock]] = {}
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


class _AtFork:
    """Sees to it that no file is open while the process forks."""

    opening = OwnLock(reentrant=True)
    """Held while a file is opened, and while the process forks."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._suspended: list[tuple[Connection, Lock]] = []
        self._opening: Lock | None = None

    def hold(self) -> None:
        deadline = monotonic() + _FORK_WAIT_S
        self._opening = self.opening
        self._opening.acquire()
        for connection in list(_connections):
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
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.release()


_at_fork = _AtFork()


def _forget() -> None:
    # What a fork in the middle of a step, or one that ran no hooks, has left open.
    _at_fork.forget()
    connections = list(_connections)
    leave(_open)
    for connection in connections:
        connection.forget()


register(Part("files", hold=_at_fork.hold, release=_at_fork.release, forget=_forget))


class Connection:
    """See the module. Statements run between :meth:`begin` and :meth:`commit`, under `lock`."""

    lock = OwnLock(reentrant=True)

    def __init__(self, where: Location, options: Options, create: bool = True) -> None:
        self.where = where
        self._create = create
        self.reserve = DiskReserve(where.path)
        self.opened = 0
        self.connected_at = 0.0
        self._timeout_s = options.socket_timeout
        self._synchronous = options.synchronous
        self._raw: sqlite3.Connection | None = None
        self._process = -1
        self._reconnect_disabled = False
        self._closed = False
        self._suspended = False
        self._standing = Standing(where.path)
        self._turns = Turns.at(where.path)
        self._turn: Lock | None = None
        _connections.add(self)

    def __del__(self) -> None:
        """Close what nobody has closed, unless it is another process's."""
        raw, self._raw = getattr(self, "_raw", None), None
        if raw is not None and is_here(self._process):
            self._discard(raw)

    def forget(self) -> None:
        """Be closed, in a child: what was open is the parent's."""
        self._raw, self._suspended, self._turn = None, False, None

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._raw is not None

    @property
    def alive(self) -> bool:
        """Whether the file is open, in this process, and has not failed."""
        return self._process == here() and (self._raw is not None or self._suspended)

    def disable_reconnect(self) -> None:
        """Never open the file anew."""
        self._reconnect_disabled = True

    def suspend(self) -> None:
        """Close the file until the next step, unless one is under way; under `lock`."""
        raw = self._raw
        if raw is not None and not raw.in_transaction:
            self._raw, self._suspended = None, True
            self._discard(raw)

    def require(self) -> sqlite3.Connection:
        """Return the open connection, opening it at need; raises BrokerUnavailable."""
        process = here()
        if self._raw is not None and self._process == process:
            return self._raw
        with self.lock, _at_fork.opening:
            return self._open()

    def _open(self) -> sqlite3.Connection:
        if self.alive and self._raw is not None:
            return self._raw
        own = self._process == here()
        again, self._suspended = self._suspended and own, False
        if self._closed or (self._reconnect_disabled and own and not again):
            raise BrokerUnavailable(f"{self.where}: the connection is closed")
        if again:
            self._require_same()
        self._find()
        self._clear_for_others()
        require_left(self.where)
        began = monotonic()
        if not again:  # else it was never closed, to whoever asks
            self.connected_at = began
        deadline = began + self._timeout_s
        raw = None
        while self._raw is None:
            found = identity(self.where.path)
            try:
                raw = raw or sqlite3.connect(
                    self.where.path,
                    timeout=0.0,
                    isolation_level=None,
                    check_same_thread=False,
                    cached_statements=512,
                )
                _open[raw] = self.where, self.lock
                self._prepare(raw)
                self._standing.note(found)
                self._raw, self._process = raw, here()
            except sqlite3.Error as exc:
                if is_busy(exc) and monotonic() < deadline:
                    sleep(uniform(_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S))  # noqa: S311
                    continue
                self._discard(raw)
                raw = None
                # On a full disk there is no room for what SQLite keeps beside the file: it says
                # that it cannot be opened, or read.
                if is_shut(exc) and self.reserve.give_up():
                    continue
                raise translate(exc, self.where, self._timeout_s) from exc
            except BaseException:
                self._discard(raw)
                raise
        self.opened += not again
        self.reserve.keep()
        return self._raw

    def _clear_for_others(self) -> None:
        """Do what a connection of this process, open to the file that was here, does next.

        Else the log of that file lies beside the one that is opened now.
        """
        for other in list(_connections):
            if other.where.path == self.where.path and other._raw is not None:  # noqa: SLF001
                other._standing.clear_away_if_moved()  # noqa: SLF001

    def _find(self) -> None:
        """Make sure that there is a file; raises ConfigurationError."""
        if sqlite3.sqlite_version_info < _OLDEST:
            raise ConfigurationError(
                f"{self.where}: expected SQLite 3.24 or newer in this Python, "
                f"got: {sqlite3.sqlite_version}"
            )
        if self._create:
            self.where.create()
        else:
            self.where.require()
        require_own(self.where)

    def _prepare(self, raw: sqlite3.Connection) -> None:
        raw.execute("BEGIN")  # at one instant: another process may be making the tables now
        try:
            version = version_of(raw, self.where)
        finally:
            with suppress(sqlite3.Error):
                raw.execute("ROLLBACK")
        if version == 0 and not self._create:
            raise ConfigurationError(
                f"{self.where}: the file is empty: no application has used it as its broker yet; "
                "correct the URL, or start the application"
            )
        # Whatever its version: a backup has been made without (VACUUM INTO).
        (mode,) = raw.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise ConfigurationError(
                f"{self.where}: its file system cannot share memory between processes "
                "(is it on a network?): name a file on a local disk"
            )
        if version != VERSION:
            raw.execute("BEGIN IMMEDIATE")
            try:
                bring_up_to_date(raw, self.where)
                raw.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    raw.execute("ROLLBACK")
                raise
        raw.execute(f"PRAGMA synchronous = {self._synchronous}")
        raw.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")

    @staticmethod
    def _discard(raw: sqlite3.Connection | None) -> None:
        if raw is not None:
            _open.pop(raw, None)
            with suppress(sqlite3.Error):
                raw.close()

    def close(self, for_good: bool = True) -> None:
        """Close the file; *for_good* it is not opened again."""
        with self.lock:
            self._closed = self._closed or for_good
            self._suspended = False
            raw, self._raw = self._raw, None
            self._discard(raw)

    def begin(self, reading: bool = False) -> sqlite3.Connection:
        """Begin a transaction, waiting while the file is locked; return the connection.

        To be ended by :meth:`undo` or :meth:`failed`, whatever came of it. One that only
        reads is in nobody's way, and waits for nobody.
        """
        raw = self.require()
        deadline = monotonic() + self._timeout_s
        if not reading:
            self._turn = self._turns.take(self._timeout_s)
        statement = "BEGIN" if reading else "BEGIN IMMEDIATE"
        try:
            raw.execute(statement)
        except sqlite3.Error as exc:
            if not is_busy(exc):
                raise
        else:
            return self._in_place(raw)
        self._again(raw, statement, deadline)
        return self._in_place(raw)

    def _require_same(self) -> None:
        if not self._standing.holds():
            self._standing.clear_away()
            raise moved(self.where)

    def _in_place(self, raw: sqlite3.Connection) -> sqlite3.Connection:
        """Return *raw*; raises BrokerUnavailable where another file, or none, is at its path."""
        if not self._standing.holds():
            self._let_go(raw)
            raise moved(self.where)
        return raw

    def _let_go(self, raw: sqlite3.Connection) -> None:
        """Leave the file, wherever it is now, whole, and nothing of it beside the next one."""
        self.undo()
        with suppress(sqlite3.Error):
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._standing.clear_away()
        self.close(for_good=False)

    def _again(self, raw: sqlite3.Connection, statement: str, deadline: float) -> None:
        longest = 2 * _SHORTEST_SLEEP_S
        while True:
            sleep(uniform(_SHORTEST_SLEEP_S, longest))  # noqa: S311 - no secret
            longest = min(2 * longest, _LONGEST_SLEEP_S)
            try:
                raw.execute(statement)
            except sqlite3.Error as exc:
                if not is_busy(exc) or monotonic() >= deadline:
                    raise
            else:
                return

    def failed(self, exc: sqlite3.Error) -> Exception:
        """Undo the transaction; return what *exc* is to a user."""
        self.undo()
        error = translate(exc, self.where, self._timeout_s)
        if isinstance(error, BrokerUnavailable) and not is_busy(exc):
            self.close(for_good=False)
        return error

    def make_room(self) -> None:
        """Give up the reserve, and write the log to the file: it needs no more room then."""
        self.reserve.give_up()
        with self.lock, suppress(sqlite3.Error):
            self.require().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def free_bytes(self) -> int:
        """Return how much of the file is free inside."""
        (pages,) = self.statement("PRAGMA freelist_count").fetchone()
        return int(pages) * _PAGE

    def undo(self) -> None:
        """End this thread's turn, and undo the transaction if it is still under way."""
        raw = self._raw
        if raw is not None and raw.in_transaction:
            with suppress(sqlite3.Error):
                raw.execute("ROLLBACK")
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()

    def statement(self, sql: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Run one statement by itself, as a transaction of its own."""
        with self.lock:
            raw = self._in_place(self.require())
            deadline = monotonic() + self._timeout_s
            while True:
                try:
                    return raw.execute(sql, values)
                except sqlite3.Error as exc:  # noqa: PERF203 - it is what the loop is for
                    if not is_busy(exc) or monotonic() > deadline:
                        raise self.failed(exc) from exc
                    sleep(uniform(_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S))  # noqa: S311
