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
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from ..errors import BrokerRefused, BrokerUnavailable, ConfigurationError
from ..forks import OwnLock, Part, here, register
from ..store.limits import BATCH, BATCH_BYTES, LONG_MS
from . import SCHEME, is_spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..errors import ReliqError

CERTAIN_MS = LONG_MS - 1_000_000
"""For so long a broker certainly knows a number: it is told how long at least every 15 minutes."""
ENDS = ("forwarded", "expired", "dropped", "doubtful")
"""What becomes of what was spooled; the doubtful ones are forwarded and may be stored twice."""
DECLARATIONS = "SELECT kind, name, body FROM declarations ORDER BY id"
_FORMAT = 1
_APPLICATION = 1919249521  # "relq": tells the file from those of other programs
_PATIENCE_S = 10.0
# A forwarder that takes nothing for so long is taken for dead; if it is not, numbers tell.
_LEASE_MS = 3000
# What SQLite needs beside the file to empty it again.
_ROOM = 32_000_000
_PAGE = 4096
_SIDES = ("", "-wal", "-shm")
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS publishes (id INTEGER PRIMARY KEY AUTOINCREMENT, exchange TEXT,
  routing_key TEXT, stored_ms INT, message BLOB, broker TEXT, data TEXT, sent_ms INT);
CREATE TABLE IF NOT EXISTS declarations (id INTEGER PRIMARY KEY, kind TEXT, name TEXT, body BLOB,
  UNIQUE (kind, name, body));
CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, value INT);
CREATE TABLE IF NOT EXISTS about (publisher TEXT, forwarder TEXT, until_ms INT);
INSERT INTO about SELECT lower(hex(randomblob(9))), '', 0 WHERE NOT EXISTS (SELECT 1 FROM about);
PRAGMA application_id = 1919249521;
PRAGMA user_version = 1;
COMMIT"""


def _found(path: str) -> os.stat_result | None:
    with suppress(FileNotFoundError):  # SQLite removes what is beside the file
        return os.lstat(path)
    return None


def _inode(path: str) -> int:
    found = _found(path)
    return 0 if found is None else found.st_ino


class Spooled(NamedTuple):
    """One publish in the journal."""

    exchange: str
    routing_key: str
    stored_ms: int
    """When it was published, by the clock of this machine."""
    message: bytes
    broker: str | None = None
    """The broker that may have it: its reply was lost, or it was being forwarded there."""
    data: str | None = None
    """The id of that broker's data then."""
    sent_ms: int | None = None
    id: int = 0
    """Its place in the order, and its number under the spool's own name."""


class Journal:
    """The file at one path; errors are ReliqError, and then nothing was changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.told = False
        """Whether the log says that this process forwards from it."""
        self._opened: sqlite3.Connection | None = None
        self._process = self._inode = 0

    def __str__(self) -> str:
        """Return the URL that names it."""
        return f"{SCHEME}:///{self.path}"

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return os.path.lexists(self.path)

    @property
    def size_bytes(self) -> int:
        """The size of the file, and of the files that SQLite keeps beside it."""
        return sum(found.st_size for found in self._files())

    # -- the connection

    def check(self) -> None:
        """Make the file where there is none, and see that it can be used."""
        with self._transaction():
            pass

    def close(self) -> None:
        """Let go of the file until it is used again."""
        with JOURNALS.lock:
            if self._opened is not None and self._process == here():
                self._opened.close()
                self._opened = None

    def _files(self) -> list[os.stat_result]:
        return [found for side in _SIDES if (found := _found(self.path + side)) is not None]

    def _open(self) -> sqlite3.Connection:
        if self._opened is None:
            self._make()
            uri = f"file:{quote(self.path)}?mode=rw"
            options: Any = {"timeout": _PATIENCE_S, "isolation_level": None}
            opened = sqlite3.connect(uri, uri=True, check_same_thread=False, **options)
            try:
                self._prepare(opened)
            except BaseException:
                opened.close()
                raise
            self._opened, self._process, self._inode = opened, here(), _inode(self.path)
        if self._process != here():
            raise self._refused(
                "this process was forked by a program that runs no Python hooks, while its parent "
                "used the spool: let it run them (uWSGI: py-call-osafterfork), or publish in the "
                "children only"
            )
        if _inode(self.path) != self._inode:
            raise self._refused("the file was removed or replaced in use: restart this process")
        return self._opened

    def _make(self) -> None:
        """Create the file for its owner alone; refuse a file that others have put there."""
        try:
            if not self.exists:
                with suppress(FileExistsError):  # another process was faster
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            files = self._files()
        except OSError as exc:
            raise self._unusable(f"it cannot be opened ({exc.strerror})") from exc
        if any(not stat.S_ISREG(f.st_mode) or f.st_uid != os.geteuid() for f in files):
            raise self._unusable(f"it is no file of this user (uid {os.geteuid()})")
        if any(f.st_mode & 0o077 for f in files):
            raise self._unusable(f"other users may open it: chmod 600 {self.path}*")

    def _prepare(self, opened: sqlite3.Connection) -> None:
        tables, application, version = opened.execute(
            "SELECT (SELECT count(*) FROM sqlite_master), application_id, user_version "
            "FROM pragma_application_id, pragma_user_version"
        ).fetchone()
        if tables and application != _APPLICATION:
            raise self._unusable("the file is another program's")
        if version > _FORMAT:
            raise self._unusable(f"it has format {version}, and this reliq knows {_FORMAT}")
        opened.execute("PRAGMA journal_mode = WAL")
        if not tables:
            opened.executescript(_SCHEMA)

    @contextmanager
    def _transaction(
        self, kind: str = "IMMEDIATE", *, most_bytes: int = 0, fsync: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction.

        *most_bytes*: how large the file may grow by it. *fsync*: it is on the disk afterwards.
        """
        with JOURNALS.lock:
            try:
                opened = self._open()
                opened.execute(f"PRAGMA max_page_count = {most_bytes // _PAGE or 2**31 - 1}")
                opened.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
                opened.execute(f"BEGIN {kind}")
                with opened:
                    yield opened
            except sqlite3.Error as exc:
                raise self._in_words(str(exc)) from exc

    # -- errors

    def _unusable(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self}: {why}; nothing was changed. A spool is a file of its own, no link, in a "
            "directory where this user may write: correct that, or name another file"
        )

    def _refused(self, why: str) -> BrokerRefused:
        return BrokerRefused(f"{self}: nothing was stored: {why}")

    def _in_words(self, text: str) -> ReliqError:
        if "disk is full" in text or "disk I/O" in text:
            return self._refused(
                f"the spool has reached spool_max, or the disk is full (less than {_ROOM} bytes): "
                "raise spool_max, free space, or wait until a broker answers and it is forwarded"
            )
        if "locked" in text:
            return BrokerUnavailable(
                f"{self}: locked by another process for more than {_PATIENCE_S:g} s; nothing was "
                "stored: is one of them stopped?"
            )
        if "not a database" in text:
            return self._unusable("the file is another program's")
        return self._refused(
            f"{text}. Move the file away, and save what can be read: sqlite3 {self.path} .recover"
        )

    # -- publishing

    def add(self, items: Iterable[Spooled], most_bytes: int, *, fsync: bool = False) -> None:
        """Append publishes, all or none. *fsync*: they are on the disk then."""
        query = (
            "INSERT INTO publishes (exchange, routing_key, stored_ms, message, broker, data, "
            "sent_ms) VALUES (?, ?, ?, ?, ?, ?, ?)"
        )
        disk = os.statvfs(os.path.dirname(self.path))  # noqa: PTH120 - 2 µs
        if disk.f_bavail * disk.f_frsize < _ROOM:
            raise self._in_words("disk is full")
        with self._transaction(most_bytes=most_bytes, fsync=fsync) as opened:
            opened.executemany(query, (item[:7] for item in items))

    def declare(self, kind: str, name: str, body: bytes) -> None:
        """Note what a publisher declared: it is declared before anything is forwarded."""
        query = "INSERT OR IGNORE INTO declarations (kind, name, body) VALUES (?, ?, ?)"
        with self._transaction() as opened:
            opened.execute(query, (kind, name, body))

    # -- forwarding

    def take(
        self, forwarder: str, after: int, broker: str, data: str
    ) -> tuple[list[Spooled], str, int]:
        """Return the next publishes after *after* that may go to *broker*, as they were before.

        And the name under which the spool numbers them, and the number below which nothing waits.
        They are noted as sent there: until that is known, or for a day, they go nowhere else.
        Nothing where another forwarder is at it: two would do no harm, but the work twice.
        """
        now, found, size = int(time() * 1000), list[Spooled](), 0
        until = now + _LEASE_MS
        lease = (
            "UPDATE about SET forwarder = ?1, until_ms = ?3 "
            "WHERE forwarder = ?1 OR until_ms NOT BETWEEN ?2 AND ?3"
        )
        query = (
            "SELECT exchange, routing_key, stored_ms, message, broker, data, sent_ms, id "
            "FROM publishes WHERE id > ? AND (broker IS NULL OR broker = ? OR data = ? OR "
            "sent_ms < ?) ORDER BY id LIMIT ?"
        )
        note = "UPDATE publishes SET broker = ?, data = ?, sent_ms = ? WHERE id = ?"
        about = "SELECT publisher, (SELECT min(id) FROM publishes) FROM about"
        with self._transaction() as opened:
            if not opened.execute(lease, (forwarder, now, until)).rowcount:
                return [], "", 0
            for row in opened.execute(query, (after, broker, data, now - CERTAIN_MS, BATCH)):
                found.append(Spooled(*row))
                size += len(found[-1].message)
                if size > BATCH_BYTES:
                    break
            new = [item for item in found if item.broker != broker and item.data != data]
            opened.executemany(note, [(broker, data, now, item.id) for item in new])
            publisher, lowest = opened.execute(about).fetchone()
        # A copy of the file is another publisher.
        return found, f"{publisher}{self._inode:x}", lowest or 0

    def rest(self, forwarder: str) -> None:
        """Let others forward at once."""
        with self._transaction() as opened:
            opened.execute("UPDATE about SET until_ms = 0 WHERE forwarder = ?", (forwarder,))

    def done(self, doubtful: int, **ends: Sequence[int]) -> None:
        """Remove publishes that need no more, and count what became of them."""
        count = "INSERT INTO counts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + ?"
        with self._transaction() as opened:
            counts = {"doubtful": doubtful}
            for name, ids in ends.items():
                remove = "DELETE FROM publishes WHERE id = ?"
                counts[name] = sum(opened.execute(remove, (one,)).rowcount for one in ids)
            opened.executemany(count, [(name, n, n) for name, n in counts.items() if n])

    # -- looking

    def look(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT."""
        with self._transaction("DEFERRED") as opened:
            return opened.execute(query).fetchall()

    @property
    def holds(self) -> int:
        """How many publishes wait; makes no file."""
        return int(self.look("SELECT count(*) FROM publishes")[0][0]) if self.exists else 0


class Journals:
    """The journals of this process, by path, and the lock of them all."""

    lock = OwnLock(reentrant=True)

    def __init__(self) -> None:
        self._journals: dict[str, Journal] = {}

    def at(self, url: str) -> Journal:
        """Return the journal that *url* names, which may be a mere path; opens nothing."""
        named = url.partition("://")[2].partition("/")[2].partition("?")[0]
        path = unquote(named) if is_spool(url) else url
        if not path or path == "/" or "\0" in path:
            raise ConfigurationError(
                f"expected a file in the URL of the spool: {SCHEME}:////absolute/path.db, or "
                f"{SCHEME}:///relative.db, got: {url!r}"
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
