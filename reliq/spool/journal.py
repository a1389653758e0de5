"""The journal of a spool: publishes that wait for a broker, in one SQLite file.

This module owns the file, its tables and its size limit. A process opens a file once, and never
keeps it open across a fork, because closing any of its descriptors ends SQLite's locks. The module
is independent of brokers and of Kombu.
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
"""How long a broker certainly keeps a number. Publishers renew this period every 15 minutes."""
Publish: TypeAlias = "tuple[str, str, int, bytes, str | None, str | None, int | None]"
"""Exchange, routing key, time in ms, and the rest of the message. For a publish whose reply was
lost, also the broker that may have it, the id of that broker's data, and since when; else None."""
Taken: TypeAlias = "tuple[int, str, str, int, bytes, bool]"
"""The position, the first four fields of a publish, and whether it may be stored twice."""
_PATIENCE_S = 10.0
# A forwarder is considered dead after this silence. If it lives, numbers prevent duplicates.
_LEASE_MS = 3000
# Free space, in bytes, that SQLite needs to remove the publishes again.
_ROOM = 32_000_000
_FORMAT = (1919249521, 1)  # "relq" distinguishes the file from those of other programs
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
    """The file at one path. Errors are ReliqError; a failed operation changes nothing."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.told = False
        """Whether this process has logged that it forwards from the file."""
        self._opened: sqlite3.Connection | None = None
        self._mark = (0, 0)
        self._settings = ""

    def __str__(self) -> str:
        """Return its URL."""
        return f"{SCHEME}:///{self.path}"

    def check(self) -> None:
        """Create a missing file; raise an error if the file is unusable."""
        with self._transaction():
            pass

    def close(self) -> None:
        """Close the file until its next use."""
        with JOURNALS.lock:
            if self._opened is not None and self._mark[0] == here():
                self._opened.close()
                self._opened = None

    def _files(self) -> list[os.stat_result]:
        found = []
        for side in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):  # SQLite removes its side files
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
                "the file was removed or replaced in use, or this process was forked without "
                "Python's fork hooks while the spool was open: restart the process, and enable the "
                "hooks (uWSGI: py-call-osafterfork) or publish only in the children"
            )
        return self._opened

    def _inode(self) -> int:
        try:
            return os.lstat(self.path).st_ino
        except FileNotFoundError:
            return 0

    def _make(self) -> None:
        """Create the file for its owner only; refuse a file that another user can open."""
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        except OSError as exc:
            raise self._unusable(f"it cannot be opened ({exc.strerror})") from exc
        if any(
            not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid()
            for found in self._files()
        ):
            raise self._unusable(f"other users may open it: chmod 600 {self.path}*")

    def _prepare(self, opened: sqlite3.Connection) -> None:
        tables, *found = opened.execute(
            "SELECT (SELECT count(*) FROM sqlite_master), application_id, user_version "
            "FROM pragma_application_id, pragma_user_version"
        ).fetchone()
        if tables and tuple(found) != _FORMAT:
            raise self._unusable(f"another program or newer reliq made it: {found}, not {_FORMAT}")
        opened.execute("PRAGMA journal_mode = WAL")
        if not tables:
            opened.executescript(_SCHEMA)

    @contextmanager
    def _transaction(
        self, kind: str = "IMMEDIATE", *, most_bytes: int = 2**42, fsync: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction.

        *most_bytes* limits the size of the file. *fsync*: the result is on disk afterwards.
        """
        with JOURNALS.lock:
            try:
                opened = self._open()
                settings = (
                    f"PRAGMA max_page_count = {most_bytes // 4096};"
                    f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}"
                )
                if settings != self._settings:  # setting them takes as long as a publish
                    opened.executescript(settings)
                    self._settings = settings
                opened.execute(f"BEGIN {kind}")
                with opened:
                    yield opened
            except sqlite3.Error as exc:
                if "not a database" in str(exc):
                    raise self._unusable("another program made it") from exc
                if "locked" in str(exc):
                    raise BrokerUnavailable(
                        f"{self}: locked for {_PATIENCE_S:g} s, perhaps by a stopped process: "
                        "continue or kill it"
                    ) from exc
                raise self._refused(str(exc)) from exc

    def _unusable(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self}: {why}; nothing was changed. A spool must be a file of its own, no link, in a "
            "directory where this user may write: correct this, or use another file"
        )

    def _refused(self, why: str) -> BrokerRefused:
        return BrokerRefused(
            f"{self}: nothing was stored: {why}. If spool_max is reached or the disk is full, "
            "raise spool_max, free space, or wait until a broker answers and the spool is "
            "forwarded. Move a damaged file away (sqlite3 FILE .recover)"
        )

    def add(self, publishes: Iterable[Publish], most_bytes: int, *, fsync: bool = False) -> None:
        """Append publishes, all or none. *fsync*: they are on disk when this returns."""
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
        """Store a publisher's declaration, which is repeated before forwarding."""
        query = "INSERT OR IGNORE INTO declarations (kind, name, body) VALUES (?, ?, ?)"
        with self._transaction() as opened:
            opened.execute(query, (kind, name, body))

    def take(self, after: int, broker: str, data: str) -> tuple[list[Taken], str, int]:
        """Return the next publishes after *after* for *broker*.

        Also return the spool's publisher name, and the low-water mark of its numbers. Each publish
        is recorded as sent to this broker. For a day, or until the result is known, no other broker
        gets it. Return no publishes while another forwarder works, to avoid double work.
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
        # the inode makes a copy of the file a different publisher
        return found, f"{publisher}{self._mark[1]:x}", lowest or 0

    def done(self, places: Iterable[int], *, expired: int = 0, doubtful: int = 0) -> None:
        """Remove settled publishes, and count those that expired or may be stored twice."""
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
        """The number of stored publishes; does not create the file."""
        if not os.path.lexists(self.path):
            return 0
        return int(self.look("SELECT count(*) FROM publishes")[0][0])

    def status(self) -> dict[str, Any]:
        """Return the number and age of its publishes by route, its size, and its counters.

        Raises ConfigurationError if the file does not exist.
        """
        if not os.path.lexists(self.path):
            raise ConfigurationError(f"{self}: the file does not exist, so no publish used it")
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
    """The journals of this process by path, and their common lock."""

    lock = OwnLock(reentrant=True)

    def __init__(self) -> None:
        self._journals: dict[str, Journal] = {}

    def at(self, url: str) -> Journal:
        """Return the journal at *url*, which may also be a path; does not open the file."""
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
        """Close all files before a fork, because SQLite's locks belong to one process."""
        self.lock.acquire()
        for journal in self._journals.values():
            journal.close()

    def release(self) -> None:
        """Allow files to be opened again after a fork."""
        self.lock.release()


JOURNALS = Journals()
register(Part("spools", hold=JOURNALS.hold, release=JOURNALS.release))
