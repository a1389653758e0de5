"""The journal of a spool: publishes that wait for a broker, in one SQLite file.

This module owns the file, its tables and its size limit. A process opens a file once, and never
keeps it open across a fork, because closing any of its descriptors ends SQLite's locks. The module
is independent of brokers and of Kombu.

A publish is identified by its place and a random name, because an older copy of the file repeats
places. A process takes a new name when it opens the file, when it finds the file empty, and when
the file's last place is lower than before.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import unquote

from ..errors import BrokerRefused, BrokerUnavailable, ConfigurationError, ReliqError, logger
from ..forks import OwnLock, Part, here, register
from ..values.limits import BATCH, BATCH_BYTES, LONG_MS
from . import SCHEME, is_spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CERTAIN_MS = LONG_MS - 1_000_000
"""How long a broker certainly keeps a number. Publishers renew this period every 15 minutes."""
Publish: TypeAlias = "tuple[str, str, int, bytes, str | None, str | None, int | None]"
"""Exchange, routing key, time in ms, and the rest of the message. For a publish whose reply was
lost, also the broker that may have it, the id of that broker's data, and since when; else None."""
Taken: TypeAlias = "tuple[int, str, str, int, bytes, bool, str]"
"""The place, the first four fields of a publish, whether it may be stored twice, and the name under
which its place is its number."""
T = TypeVar("T")
_PATIENCE_S = 10.0
# A forwarder is considered dead after this silence. If it lives, numbers prevent duplicates.
_LEASE_MS = 3000
# Free space, in bytes, that SQLite needs to remove the publishes again.
_ROOM = 32_000_000
_FORMAT = (1919249521, 1)  # "relq" distinguishes the file from those of other programs
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS publishes (id INTEGER PRIMARY KEY AUTOINCREMENT, exchange TEXT,
  routing_key TEXT, stored_ms INT, message BLOB, broker TEXT, data TEXT, sent_ms INT,
  publisher TEXT);
CREATE TABLE IF NOT EXISTS declarations (id INTEGER PRIMARY KEY, kind TEXT, name TEXT, body BLOB,
  UNIQUE (kind, name, body));
CREATE TABLE IF NOT EXISTS about (publisher TEXT, expired INT, doubtful INT);
INSERT INTO about SELECT lower(hex(randomblob(9))), 0, 0 WHERE NOT EXISTS (SELECT 1 FROM about);
PRAGMA application_id = 1919249521;
PRAGMA user_version = 1;
COMMIT"""
# Files of 0.2.0 lack this column. 0.2.0 can use a file that has it, and leaves it empty.
_NAMED = "SELECT count(*) FROM pragma_table_info('publishes') WHERE name = 'publisher'"
_NAME_THEM = "ALTER TABLE publishes ADD COLUMN publisher TEXT"


_FULL = "raise spool_max, free space, or wait until a broker answers and the spool is forwarded"
_REMEDIES = {
    "database or disk is full": _FULL,
    "attempt to write a readonly database": "let this user write to the file and its directory",
}
_DAMAGED = "move a damaged file away (sqlite3 FILE .recover)"


class Journal:
    """The file at one path. Errors are ReliqError; a failed operation changes nothing."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reported = False
        """Whether this process has logged that it forwards from the file."""
        self.checked = False
        """Whether this process has checked it, or has logged that it cannot be used."""
        self._reported = ""
        self._opened: sqlite3.Connection | None = None
        self._mark = (0, 0, 0)
        self._settings = ""
        self._name, self._last = "", 0

    def __str__(self) -> str:
        """Return its URL."""
        return f"{SCHEME}:///{self.path}"

    def check(self) -> None:
        """Create a missing file; raise an error if the file is unusable. Waits for no lock."""
        self.rows("SELECT 1 FROM publishes LIMIT 1")
        self.checked = True

    def report(self, error: ReliqError) -> None:
        """Log that it cannot be used, once for each reason, because a broker answers."""
        self.checked = True
        if self._reported != str(error):
            self._reported = str(error)
            logger.warning("the spool would refuse publishes now if no broker answered: %s", error)

    def close(self) -> None:
        """Close the file until its next use."""
        with JOURNALS.lock:
            if self._opened is not None and self._mark[0] == here():
                opened, self._opened = self._opened, None
                opened.close()

    def _files(self) -> list[os.stat_result]:
        files = []
        for side in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):  # SQLite removes its side files
                files.append(os.lstat(self.path + side))
        return files

    def _open(self) -> sqlite3.Connection:
        """Open the file, unless it is open; a file that was removed or replaced is opened anew."""
        if self._opened is not None and self._mark != (here(), *self._inodes()):
            if self._mark[0] != here():
                raise self._refused(
                    "this process was forked without Python's fork hooks while the spool was open",
                    "restart it, and enable the hooks (uWSGI: py-call-osafterfork) or publish only "
                    "in the children",
                )
            with suppress(sqlite3.Error):
                (left,) = self._opened.execute("SELECT count(*) FROM publishes").fetchone()
                logger.warning(
                    "%s: the file was removed or replaced in use, with %d publishes; the file that "
                    "is there now is used, or a new one",
                    *(self, left),
                )
            self.close()  # SQLite notices that it has moved, and leaves the new one's side files
        if self._opened is None:
            self._make()
            options: Any = {"timeout": _PATIENCE_S, "isolation_level": None}
            opened = sqlite3.connect(self.path, check_same_thread=False, **options)
            try:
                self._prepare(opened)
                mark, name = (here(), *self._inodes()), os.urandom(9).hex()
            except BaseException:
                opened.close()
                raise
            self._mark, self._settings, self._name = mark, "", name
            self._opened = opened
        return self._opened

    def _inodes(self) -> tuple[int, int]:
        """Return the numbers of the file and of its log, which SQLite keeps open; 0: missing."""
        inodes = [0, 0]
        for place, side in enumerate(("", "-wal")):
            with suppress(OSError):
                inodes[place] = os.lstat(self.path + side).st_ino
        return inodes[0], inodes[1]

    def _make(self) -> None:
        """Create the file for its owner only; refuse a file that another user can open."""
        try:
            if not os.path.lexists(self.path):
                self._make_new()
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        except OSError as exc:
            raise self._unusable(f"it cannot be opened ({exc.strerror})") from exc
        if any(
            not stat.S_ISREG(file.st_mode) or file.st_mode & 0o077 or file.st_uid != os.geteuid()
            for file in self._files()
        ):
            raise self._unusable(f"other users may open it: chmod 600 {self.path}*")

    def _make_new(self) -> None:
        """Create the file, after removing the side files of one that was removed.

        Another process may still use those. The lock lets one process do this at a time, because a
        new file may get side files at once.
        """
        folder = os.open(os.path.dirname(self.path), os.O_RDONLY)  # noqa: PTH120
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if not os.path.lexists(self.path):
                for side in ("-wal", "-shm"):
                    Path(self.path + side).unlink(missing_ok=True)
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        finally:
            os.close(folder)

    def _prepare(self, opened: sqlite3.Connection) -> None:
        tables, *marks = opened.execute(
            "SELECT (SELECT count(*) FROM sqlite_master), application_id, user_version "
            "FROM pragma_application_id, pragma_user_version"
        ).fetchone()
        if tables and tuple(marks) != _FORMAT:
            raise self._unusable(f"another program or newer reliq made it: {marks}, not {_FORMAT}")
        opened.execute("PRAGMA journal_mode = WAL")
        if not tables:
            opened.executescript(_SCHEMA)
        if not opened.execute(_NAMED).fetchone()[0]:
            opened.execute("BEGIN IMMEDIATE")
            if not opened.execute(_NAMED).fetchone()[0]:  # unless another process has just done it
                opened.execute(_NAME_THEM)
            opened.execute("COMMIT")

    def _run(
        self,
        do: Callable[[sqlite3.Connection], T],
        kind: str = "IMMEDIATE",
        *,
        most_bytes: int = 2**42,
        fsync: bool = False,
    ) -> T:
        """Run *do* as one transaction, which ends whatever interrupts it; return its result.

        *most_bytes* limits the size of the file. *fsync*: the result is on disk afterwards. Not a
        context manager: an interrupt between its steps would leave the transaction open.
        """
        with JOURNALS.lock:
            try:
                opened = self._open()
                begun = opened.in_transaction
                if begun:
                    raise self._refused(
                        "a signal handler or destructor has interrupted this thread's use of the "
                        "spool",
                        "publish after it has returned",
                    )
                try:
                    settings = (
                        f"PRAGMA max_page_count = {most_bytes // 4096};"
                        f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}"
                    )
                    if settings != self._settings:  # setting them takes as long as a publish
                        self._settings = ""
                        opened.executescript(settings)
                        self._settings = settings
                    opened.execute(f"BEGIN {kind}")
                    result = do(opened)
                    opened.execute("COMMIT")
                finally:
                    if opened.in_transaction:
                        opened.rollback()
            except sqlite3.Error as exc:
                if "not a database" in str(exc):
                    raise self._unusable("another program made it") from exc
                if "locked" in str(exc):
                    raise BrokerUnavailable(
                        f"{self}: locked for {_PATIENCE_S:g} s, perhaps by a stopped process: "
                        f"continue or kill it (fuser {self.path})"
                    ) from exc
                raise self._refused(str(exc), _REMEDIES.get(str(exc), _DAMAGED)) from exc
            return result

    def _unusable(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self}: {why}; nothing was changed. A spool must be a file of its own, no link, in "
            "an existing directory where this user may write: correct this, or use another file"
        )

    def _refused(self, why: str, remedy: str) -> BrokerRefused:
        return BrokerRefused(f"{self}: nothing was stored: {why}: {remedy}")

    def add(self, publishes: Iterable[Publish], most_bytes: int, *, fsync: bool = False) -> None:
        """Append publishes, all or none. *fsync*: they are on disk when this returns."""
        query = (
            "INSERT INTO publishes (exchange, routing_key, stored_ms, message, broker, data, "
            "sent_ms, publisher) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        places = (
            "SELECT (SELECT seq FROM sqlite_sequence WHERE name = 'publishes'), "
            "(SELECT min(id) FROM publishes)"
        )

        def append(opened: sqlite3.Connection) -> None:
            last, lowest = opened.execute(places).fetchone()
            if lowest is None or last < self._last:
                self._name = os.urandom(9).hex()
            rows = [(*publish, self._name) for publish in publishes]
            self._last = (last or 0) + len(rows)
            opened.executemany(query, rows)

        try:
            disk = os.statvfs(os.path.dirname(self.path))  # noqa: PTH120 - 2 µs
        except OSError as exc:
            raise self._unusable(f"its directory cannot be opened ({exc.strerror})") from exc
        if disk.f_bavail * disk.f_frsize < _ROOM:
            raise self._refused(f"the disk has less than {_ROOM} bytes", _FULL)
        self._run(append, most_bytes=most_bytes, fsync=fsync)

    def declare(self, kind: str, name: str, body: bytes) -> None:
        """Store a publisher's declaration, which is repeated before forwarding."""
        query = "INSERT OR IGNORE INTO declarations (kind, name, body) VALUES (?, ?, ?)"
        self._run(lambda opened: opened.execute(query, (kind, name, body)))

    def take(self, after: int, broker: str, data: str) -> tuple[list[Taken], int]:
        """Return the next publishes after *after* for *broker*, and the lowest place in use.

        Each publish is recorded as sent to this broker. For a day, or until the result is known, no
        other broker gets it. Return no publishes while another forwarder works, to avoid double
        work.
        """
        now = int(time() * 1000)
        known = {"broker": broker, "data": data, "now": now, "day": now - CERTAIN_MS}
        # Places without a name are of 0.2.0. The inode makes a copy of its file another publisher.
        known.update(id=after, most=BATCH)
        query = (
            "SELECT id, exchange, routing_key, stored_ms, message, "
            "broker IS NOT NULL AND (sent_ms < :day OR data IS NOT :data), "
            "coalesce(publishes.publisher, about.publisher || :inode), sent_ms "
            "FROM publishes, about "
            "WHERE id > :id AND (broker IS NULL OR broker = :broker OR data = :data "
            "OR sent_ms < :day) ORDER BY id LIMIT :most"
        )
        note = (
            "UPDATE publishes SET broker = :broker, data = :data, sent_ms = :now "
            "WHERE id > :id AND id <= :last AND broker IS NULL"
        )

        def chosen(opened: sqlite3.Connection) -> tuple[list[Taken], int]:
            batch, size = list[Taken](), 0
            inode = f"{self._mark[1]:x}"
            for *row, sent_ms in opened.execute(query, {**known, "inode": inode}):
                if not batch and sent_ms is not None and now - _LEASE_MS < sent_ms <= now:
                    break
                batch.append(tuple(row))
                size += len(row[4])
                if size > BATCH_BYTES:
                    break
            if batch:
                opened.execute(note, {**known, "last": batch[-1][0]})
            return batch, opened.execute("SELECT min(id) FROM publishes").fetchone()[0] or 0

        return self._run(chosen)

    def done(self, settled: Iterable[Taken], *, expired: int = 0, doubtful: int = 0) -> None:
        """Remove settled publishes, and count those that expired or may be stored twice.

        If the file was replaced meanwhile, its other publishes at the same places stay.
        """
        delete = "DELETE FROM publishes WHERE id = ? AND coalesce(publisher, ?) = ?"
        count = "UPDATE about SET expired = expired + ?, doubtful = doubtful + ?"

        def remove(opened: sqlite3.Connection) -> None:
            opened.executemany(delete, ((row[0], row[6], row[6]) for row in settled))
            opened.execute(count, (expired, doubtful))

        self._run(remove)

    def reason(self, data: str, tried: bool) -> str:
        """Return why publishes were not forwarded to the broker with *data*, and the remedy."""
        query = (
            "SELECT count(*), max(broker) FROM publishes "
            "WHERE broker IS NOT NULL AND data IS NOT ? AND sent_ms >= ?"
        )
        count, other = self.rows(query, data, int(time() * 1000) - CERTAIN_MS)[0]
        if count:
            return (
                f"{count} wait for {other}, which may have stored them: forward to that broker, or "
                "repeat the command after a day"
            )
        if tried:
            return "their queues are full and reject publishes: add consumers, or raise the limits"
        return f"another process forwards: repeat the command after {_LEASE_MS // 1000} s"

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT."""
        return self._run(lambda opened: opened.execute(query, values).fetchall(), "DEFERRED")

    @property
    def holds(self) -> int:
        """The number of stored publishes; does not create the file."""
        if not os.path.lexists(self.path):
            return 0
        return int(self.rows("SELECT count(*) FROM publishes")[0][0])

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
        routes = [dict(zip(names, row, strict=True)) for row in self.rows(query, time())]
        expired, doubtful = self.rows("SELECT expired, doubtful FROM about")[0]
        return {
            "spool": str(self),
            "publishes": sum(route["publishes"] for route in routes),
            "oldest_s": max((route["oldest_s"] for route in routes), default=0.0),
            "bytes": sum(file.st_size for file in self._files()),
            "routes": routes,
            "expired": expired,
            "doubtful": doubtful,
        }


class Journals:
    """The journals of this process by path, and their common lock."""

    lock = OwnLock()

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
