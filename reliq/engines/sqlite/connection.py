"""One connection to the file: opened, shared by threads, left behind by forks.

Owns transactions and their patience; knows nothing of queues. Whoever finds the
file locked tries again in well under a millisecond, up to socket_timeout: SQLite's
own handler sleeps for up to a tenth of a second, many times as long as our
transactions last.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from random import uniform
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from ...errors import BrokerUnavailable
from ...forks import Lock, OwnLock, here, is_here
from .disk_reserve import DiskReserve
from .inherited import require_left
from .location import is_busy, is_shut, moved, translate
from .open_files import OPEN_FILES
from .opening import prepare, require_file
from .standing import Standing, identity
from .turns import Turns

if TYPE_CHECKING:
    from ...options import Options
    from .location import Location

_SHORTEST_SLEEP_S = 0.00005
_LONGEST_SLEEP_S = 0.002
_PAGE = 4096  # bytes, as a new file has them


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
        OPEN_FILES.know(self)

    def __del__(self) -> None:
        """Close what nobody has closed, unless it is another process's."""
        raw, self._raw = getattr(self, "_raw", None), None
        if raw is not None and is_here(self._process):
            OPEN_FILES.close(raw)

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
        """Close the file until it is used next, unless a transaction is under way; under `lock`."""
        raw = self._raw
        if raw is not None and not raw.in_transaction:
            self._raw, self._suspended = None, True
            OPEN_FILES.close(raw)

    def clear_away_if_moved(self, path: str) -> None:
        """Remove the log of a file that is open, and was at *path*, where another is now."""
        if self.where.path == path and self._raw is not None:
            self._standing.clear_away_if_moved()

    def require(self) -> sqlite3.Connection:
        """Return the open connection, opening it at need; raises BrokerUnavailable."""
        process = here()
        if self._raw is not None and self._process == process:
            return self._raw
        with self.lock, OPEN_FILES.opening:
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
        require_file(self.where, self._create)
        OPEN_FILES.clear_away(self.where.path)
        require_left(self.where)
        began = monotonic()
        if not again:  # else it was never closed, to whoever asks
            self.connected_at = began
        raw = self._dial(began + self._timeout_s)
        self.opened += not again
        self.reserve.keep()
        return raw

    def _dial(self, deadline: float) -> sqlite3.Connection:
        """Be open, waiting while the file is locked; return the connection."""
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
                OPEN_FILES.note(raw, self.where, self.lock)
                prepare(raw, self.where, self._create, self._synchronous)
                self._standing.note(found)
                self._raw, self._process = raw, here()
            except sqlite3.Error as exc:
                if is_busy(exc) and monotonic() < deadline:
                    sleep(uniform(_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S))  # noqa: S311
                    continue
                OPEN_FILES.close(raw)
                raw = None
                # On a full disk there is no room for what SQLite keeps beside the file: it says
                # that it cannot be opened, or read.
                if is_shut(exc) and self.reserve.give_up():
                    continue
                raise translate(exc, self.where, self._timeout_s) from exc
            except BaseException:
                OPEN_FILES.close(raw)
                raise
        return self._raw

    def close(self, for_good: bool = True) -> None:
        """Close the file; *for_good* it is not opened again."""
        with self.lock:
            self._closed = self._closed or for_good
            self._suspended = False
            raw, self._raw = self._raw, None
            OPEN_FILES.close(raw)

    def begin(self, reading: bool = False) -> sqlite3.Connection:
        """Begin a transaction, waiting while the file is locked; return the connection.

        To be ended by :meth:`undo` or :meth:`failed`, whatever came of it. One that only
        reads is in nobody's way, and waits for nobody.
        """
        raw = self.require()
        deadline = monotonic() + self._timeout_s
        if not reading:
            self._turn = self._turns.take(self._timeout_s)
        self._execute(raw, "BEGIN" if reading else "BEGIN IMMEDIATE", deadline)
        if not self._standing.holds():
            raise self._let_go(raw)
        return raw

    def _require_same(self) -> None:
        if not self._standing.holds():
            self._standing.clear_away()
            raise moved(self.where)

    def _let_go(self, raw: sqlite3.Connection) -> BrokerUnavailable:
        """Leave the file, which is not at its path any more; return what that is to a user.

        Whole, wherever it is now, and nothing of it beside the next one.
        """
        self.undo()
        with suppress(sqlite3.Error):
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._standing.clear_away()
        self.close(for_good=False)
        return moved(self.where)

    @staticmethod
    def _execute(
        raw: sqlite3.Connection, sql: str, deadline: float, values: tuple[Any, ...] = ()
    ) -> sqlite3.Cursor:
        """Run one statement, waiting while the file is locked; raises sqlite3.Error."""
        longest = 2 * _SHORTEST_SLEEP_S
        while True:
            try:
                return raw.execute(sql, values)
            except sqlite3.Error as exc:
                if not is_busy(exc) or monotonic() >= deadline:
                    raise
            sleep(uniform(_SHORTEST_SLEEP_S, longest))  # noqa: S311 - no secret
            longest = min(2 * longest, _LONGEST_SLEEP_S)

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
            raw = self.require()
            if not self._standing.holds():
                raise self._let_go(raw)
            try:
                return self._execute(raw, sql, monotonic() + self._timeout_s, values)
            except sqlite3.Error as exc:
                raise self.failed(exc) from exc
