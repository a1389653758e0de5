"""The journal of a spool: publishes that wait for a broker, in one SQLite file.

Owns the file, its tables and its bound. A process opens a file once, whatever asks for it, and
never across a fork: closing any descriptor of it ends SQLite's locks. Knows nothing of brokers and
nothing of Kombu.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from ..errors import BrokerRefused, BrokerUnavailable, ConfigurationError
from ..forks import OwnLock, Part, here, register
from ..store.limits import BATCH, BATCH_BYTES, LONG_MS
from . import SCHEME, is_spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CERTAIN_MS = LONG_MS - 1_000_000
"""For so long a broker certainly knows a number: it is told how long at least every 15 minutes."""
Publish: TypeAlias = "tuple[str, str, int, bytes, str | None, str | None, int | None]"
"""Exchange, routing key, its time in ms, all else; and of a publish whose reply was lost the
broker, the id of that broker's data, and since when it may have it."""
Taken: TypeAlias = "tuple[int, str, str, int, bytes, bool]"
"""Its place in the order, the first four, and whether its number is no proof at that broker."""
_PATIENCE_S = 10.0
# A forwarder that removes nothing for so long is taken for dead; if it is not, numbers tell.
_LEASE_MS = 3000
# What SQLite needs beside the file to empty it again.
_ROOM = 32_000_000
_FORMAT = (1919249521, 1)  # "relq" tells the file from those of other programs
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS publishes (id INTEGER PRIMARY KEY AUTOINCREMENT, exchange TEXT,
  routing_key TEXT, stored_ms INT, message BLOB, broker TEXT, data TEXT, sent_ms INT);
CREATE TABLE IF NOT EXISTS declarations (id INTEGER PRIMARY KEY, kind TEXT, name TEXT, body BLOB,
  UNIQUE (kind, name, body));
CREATE TABLE IF NOT EXISTS about (publisher TEXT, expired INT, doubtful INT);
INSERT INTO about SELECT lower(hex(randomblob(9))), 0, 0 WHERE NOT EXISTS (SELECT 1 FROM about);
PRAGMA application_id = 1919249521;
PRAGMA user_version = 1;
COMMIT"""


class Journal:
    """The file at one path; errors are ReliqError, and then nothing was changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.told = False
        """Whether the log says that this process forwards from it."""
        self._opened: sqlite3.Connection | None = None
        self._mark = (0, 0)
        self._settings = ""

    def __str__(self) -> str:
        """Return the URL that names it."""
        return f"{SCHEME}:///{self.path}"

    def check(self) -> None:
        """Make the file where there is none, and see that it can be used."""
        with self._transaction():
            pass

    def close(self) -> None:
        """Let go of the file until it is used again."""
        with JOURNALS.lock:
            if self._opened is not None and self._mark[0] == here():
                self._opened.close()
                self._opened = None

    def _files(self) -> list[os.stat_result]:
        found = []
        for side in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):  # SQLite removes what is beside the file
                found.append(os.lstat(self.path + side))
        return found

    def _open(self) -> sqlite3.Connection:
        if self._opened is None:
            self._make()
            options: Any = {"timeout": _PATIENCE_S, "isolation_level": None}
            self._opened = sqlite3.connect(self.path, check_same_thread=False, **options)
            self._mark, self._settings = (here(), self._inode()), ""
            try:
                self._prepare(self._opened)
            except BaseException:
                self.close()
                raise
        if self._mark != (here(), self._inode()):
            raise self._refused(
                "the file was removed or replaced in use, or a program that runs no Python hooks "
                "has forked this process while the spool was open: restart it, and let it run "
                "them (uWSGI: py-call-osafterfork) or publish in the children only"
            )
        return self._opened

    def _inode(self) -> int:
        try:
            return os.lstat(self.path).st_ino
        except FileNotFoundError:
            return 0

    def _make(self) -> None:
        """Create the file for its owner alone; refuse a file that others have put there."""
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        except OSError as exc:
            raise self._unusable(f"it cannot be opened ({exc.strerror})") from exc
        if any(
            not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid()
            for found in self._files()
        ):
            raise self._unusable(f"not only this user may open it: chmod 600 {self.path}*")

    def _prepare(self, opened: sqlite3.Connection) -> None:
        tables, *found = opened.execute(
            "SELECT (SELECT count(*) FROM sqlite_master), application_id, user_version "
            "FROM pragma_application_id, pragma_user_version"
        ).fetchone()
        if tables and tuple(found) != _FORMAT:
            raise self._unusable(f"another program's, or a newer reliq's: {found}, not {_FORMAT}")
        opened.execute("PRAGMA journal_mode = WAL")
        if not tables:
            opened.executescript(_SCHEMA)

    @contextmanager
    def _transaction(
        self, kind: str = "IMMEDIATE", *, most_bytes: int = 2**42, fsync: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction.

        *most_bytes*: how large the file may grow by it. *fsync*: it is on the disk afterwards.
        """
        with JOURNALS.lock:
            try:
                opened = self._open()
                settings = (
                    f"PRAGMA max_page_count = {most_bytes // 4096};"
                    f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}"
                )
                if settings != self._settings:  # they cost as much as a publish
                    opened.executescript(settings)
                    self._settings = settings
                opened.execute(f"BEGIN {kind}")
                with opened:
                    yield opened
            except sqlite3.Error as exc:
                if "not a database" in str(exc):
                    raise self._unusable("another program's") from exc
                if "locked" in str(exc):
                    raise BrokerUnavailable(
                        f"{self}: locked for {_PATIENCE_S:g} s: is a process stopped that uses it? "
                        "Continue or kill it"
                    ) from exc
                raise self._refused(str(exc)) from exc

    def _unusable(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self}: {why}; nothing was changed. A spool is a file of its own, no link, in a "
            "directory where this user may write: correct that, or name another file"
        )

    def _refused(self, why: str) -> BrokerRefused:
        return BrokerRefused(
            f"{self}: nothing was stored: {why}. Where spool_max is reached or the disk is full, "
            "raise it, free space, or wait until a broker answers and it is forwarded; a damaged "
            "file is to be moved away (sqlite3 FILE .recover)"
        )

    def add(self, publishes: Iterable[Publish], most_bytes: int, *, fsync: bool = False) -> None:
        """Append publishes, all or none. *fsync*: they are on the disk then."""
        query = (
            "INSERT INTO publishes (exchange, routing_key, stored_ms, message, broker, data, "
            "sent_ms) VALUES (?, ?, ?, ?, ?, ?, ?)"
        )
        disk = os.statvfs(os.path.dirname(self.path))  # noqa: PTH120 - 2 µs
        if disk.f_bavail * disk.f_frsize < _ROOM:
            raise self._refused(f"the disk has less than {_ROOM} bytes")
        with self._transaction(most_bytes=most_bytes, fsync=fsync) as opened:
            opened.executemany(query, publishes)

    def declare(self, kind: str, name: str, body: bytes) -> None:
        """Note what a publisher declared: it is declared before anything is forwarded."""
        query = "INSERT OR IGNORE INTO declarations (kind, name, body) VALUES (?, ?, ?)"
        with self._transaction() as opened:
            opened.execute(query, (kind, name, body))

    def take(self, after: int, broker: str, data: str) -> tuple[list[Taken], str, int]:
        """Return the next publishes after *after* that may go to *broker*.

        And the name under which the spool numbers them, and the number below which nothing waits.
        They are noted as sent there: until that is known, or for a day, they go nowhere else.
        None while another forwarder is at them: two would do no harm, but the work twice.
        """
        now, found, size = int(time() * 1000), list[Taken](), 0
        known = {"broker": broker, "data": data, "now": now, "day": now - CERTAIN_MS}
        known.update(id=after, most=BATCH)
        query = (
            "SELECT id, exchange, routing_key, stored_ms, message, "
            "broker IS NOT NULL AND (sent_ms < :day OR data IS NOT :data), sent_ms FROM publishes "
            "WHERE id > :id AND (broker IS NULL OR broker = :broker OR data = :data "
            "OR sent_ms < :day) ORDER BY id LIMIT :most"
        )
        note = (
            "UPDATE publishes SET broker = :broker, data = :data, sent_ms = :now "
            "WHERE id > :id AND id <= :last AND broker IS NULL"
        )
        about = "SELECT publisher, (SELECT min(id) FROM publishes) FROM about"
        with self._transaction() as opened:
            for *row, sent_ms in opened.execute(query, known):
                if not found and sent_ms is not None and now - _LEASE_MS < sent_ms <= now:
                    break
                found.append(tuple(row))
                size += len(row[4])
                if size > BATCH_BYTES:
                    break
            if found:
                opened.execute(note, {**known, "last": found[-1][0]})
            publisher, lowest = opened.execute(about).fetchone()
        # A copy of the file is another publisher.
        return found, f"{publisher}{self._mark[1]:x}", lowest or 0

    def done(self, places: Iterable[int], *, expired: int = 0, doubtful: int = 0) -> None:
        """Remove publishes that need no more, and count what became of some of them."""
        count = "UPDATE about SET expired = expired + ?, doubtful = doubtful + ?"
        with self._transaction() as opened:
            opened.executemany("DELETE FROM publishes WHERE id = ?", ((one,) for one in places))
            opened.execute(count, (expired, doubtful))

    def look(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT."""
        with self._transaction("DEFERRED") as opened:
            return opened.execute(query, values).fetchall()

    @property
    def holds(self) -> int:
        """How many publishes wait; makes no file."""
        if not os.path.lexists(self.path):
            return 0
        return int(self.look("SELECT count(*) FROM publishes")[0][0])

    def status(self) -> dict[str, Any]:
        """Return how many wait in it, for how long, by which routes, and what became of others.

        Raises ConfigurationError where there is no file.
        """
        if not os.path.lexists(self.path):
            raise ConfigurationError(f"{self}: nothing was ever published there")
        names = ("exchange", "routing_key", "publishes", "oldest_s")
        query = (
            "SELECT exchange, routing_key, count(*), max(? - min(stored_ms) / 1000.0, 0) "
            "FROM publishes GROUP BY 1, 2 ORDER BY 4 DESC"
        )
        routes = [dict(zip(names, row, strict=True)) for row in self.look(query, time())]
        expired, doubtful = self.look("SELECT expired, doubtful FROM about")[0]
        return {
            "spool": str(self),
            "publishes": sum(route["publishes"] for route in routes),
            "oldest_s": max((route["oldest_s"] for route in routes), default=0.0),
            "bytes": sum(found.st_size for found in self._files()),
            "routes": routes,
            "expired": expired,
            "doubtful": doubtful,
        }


class Journals:
    """The journals of this process, by path, and the lock of them all."""

    lock = OwnLock(reentrant=True)

    def __init__(self) -> None:
        self._journals: dict[str, Journal] = {}

    def at(self, url: str) -> Journal:
        """Return the journal that *url* names, which may be a mere path; opens nothing."""
        named = url.partition("://")[2].partition("/")[2].partition("?")[0]
        path = unquote(named) if is_spool(url) else url
        if path in {"", "/"} or "\0" in path:
            raise ConfigurationError(
                f"expected {SCHEME}:////absolute/path.db or {SCHEME}:///relative.db, got: {url!r}"
            )
        absolute = os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - links are refused
        with self.lock:
            return self._journals.setdefault(absolute, Journal(absolute))

    def hold(self) -> None:
        """Have no file open while the process forks: SQLite's locks are a process's own."""
        self.lock.acquire()
        for journal in self._journals.values():
            journal.close()

    def release(self) -> None:
        """Let files be opened again after a fork."""
        self.lock.release()


JOURNALS = Journals()
register(Part("spools", hold=JOURNALS.hold, release=JOURNALS.release))
