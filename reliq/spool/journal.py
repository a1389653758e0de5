"""The journal of a spool: publishes that wait for a broker, in one SQLite file.

Owns the file, its tables and its bound. The file is open only while this process publishes into
it or forwards from it, and never across a fork. Knows nothing of brokers and nothing of Kombu.
"""

from __future__ import annotations

import fcntl
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..errors import ReliqError
    from ..forks import Lock
    from ..options import Options

SCHEME = "reliq-spool"
FORMAT = 1
_APPLICATION = 1919249521  # "relq": tells the file from those of other programs
_PAGE = 4096
_SIDES = ("", "-wal", "-shm")
_SCHEMA = """
CREATE TABLE publishes (id INTEGER PRIMARY KEY AUTOINCREMENT, exchange TEXT, routing_key TEXT,
  tag TEXT, envelope BLOB, rank INT, delay_ms INT, ttl_ms INT, creates INT, partition_key TEXT,
  stored_ms INT, tried BLOB, broker TEXT, data TEXT, sent_ms INT);
CREATE TABLE declarations (id INTEGER PRIMARY KEY, kind TEXT, name TEXT, body BLOB,
  UNIQUE (kind, name, body));
CREATE TABLE about (name TEXT PRIMARY KEY, value);
INSERT INTO about VALUES ('publisher', lower(hex(randomblob(9))));
PRAGMA application_id = 1919249521;
PRAGMA user_version = 1"""
_COLUMNS = (
    "exchange, routing_key, tag, envelope, rank, delay_ms, ttl_ms, creates, partition_key, "
    "stored_ms, tried, broker, data, sent_ms"
)


class Spooled(NamedTuple):
    """One publish in the journal."""

    exchange: str
    routing_key: str
    tag: str
    envelope: bytes
    rank: int
    delay_ms: int
    ttl_ms: int
    creates: bool
    partition_key: str | None
    stored_ms: int
    """When it was published, by the clock of this machine."""
    tried: bytes | None = None
    """Packed: by queue, tag, number and publisher of an earlier try whose reply was lost."""
    broker: str | None = None
    """The broker that may have it: by that try, or because it was being forwarded there."""
    data: str | None = None
    """The id of that broker's data then."""
    sent_ms: int | None = None
    id: int = 0
    """Its place in the order, and its number under the spool's own name."""


class Journal:
    """The file at one path. Thread-safe by its lock; its connection is of this process alone."""

    _lock = OwnLock(reentrant=True)

    def __init__(self, path: str, most_bytes: int, timeout_s: float) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self._timeout_s = timeout_s
        self._opened: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._process = 0
        self._held: list[Lock] = []

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
        paths = [self.path + side for side in _SIDES]
        return sum(os.lstat(path).st_size for path in paths if os.path.lexists(path))

    # -- the connection

    def check(self) -> None:
        """Make the file where there is none, and see that it can be used; raises ReliqError."""
        with self._lock:
            with self._transaction():
                pass
            self.close()

    def close(self) -> None:
        """Let go of the file until it is used again."""
        with self._lock:
            if self._opened is not None and self._process == here():
                self._opened.close()
                self._opened = None

    def hold(self) -> None:
        """Close the file before a fork, and let nobody open it before :meth:`release`."""
        lock = self._lock
        lock.acquire()
        self._held.append(lock)
        self.close()

    def release(self) -> None:
        """Undo :meth:`hold`."""
        if self._held:
            self._held.pop().release()

    def _open(self) -> sqlite3.Connection:
        if self._opened is None:
            self._make()
            uri = f"file:{quote(self.path)}?mode=rw"
            options = {"timeout": self._timeout_s, "isolation_level": None}
            opened = sqlite3.connect(uri, uri=True, check_same_thread=False, **options)  # type: ignore[call-overload]
            try:
                self._prepare(opened)
            except BaseException:
                opened.close()
                raise
            self._opened, self._identity, self._process = opened, self._found(), here()
        elif self._process != here():
            raise BrokerRefused(
                f"{self}: this process was forked, by a program that runs no Python hooks, while "
                "its parent used the spool: let the program run the hooks (uWSGI: "
                "py-call-osafterfork), or publish in the children only"
            )
        elif self._found() != self._identity:
            raise BrokerRefused(
                f"{self}: the file was removed or replaced while it was in use; nothing was "
                "stored: restart this process"
            )
        return self._opened

    def _found(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = os.lstat(self.path)
            return found.st_dev, found.st_ino
        return None

    def _make(self) -> None:
        """Create the file for its owner alone; refuse a file that others have put there."""
        try:
            flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            os.close(os.open(self.path, flags, 0o600))
            found = [os.lstat(path) for side in _SIDES if os.path.lexists(path := self.path + side)]
        except OSError as exc:
            raise self._unusable(f"it cannot be opened ({exc.strerror})") from exc
        if any(not stat.S_ISREG(f.st_mode) or f.st_uid != os.geteuid() for f in found):
            raise self._unusable(f"it is no file of this user (uid {os.geteuid()})")
        if any(f.st_mode & 0o077 for f in found):
            raise self._unusable(f"other users may open it: chmod 600 {self.path}*")

    def _unusable(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self}: {why}; nothing was changed. A spool is a file of its own, no link, in a "
            "directory where this user may write: correct that, or name another file"
        )

    def _prepare(self, opened: sqlite3.Connection) -> None:
        self._require_ours(opened)
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("BEGIN IMMEDIATE")
        try:
            if self._require_ours(opened) == 0:
                for statement in _SCHEMA.split(";\n"):
                    opened.execute(statement)
            opened.execute("COMMIT")
        except BaseException:
            opened.execute("ROLLBACK")
            raise

    def _require_ours(self, opened: sqlite3.Connection) -> int:
        """Return the format of the file, 0 for an empty one; raises ConfigurationError."""
        ask = "SELECT (SELECT count(*) FROM sqlite_master), application_id, user_version FROM "
        ask += "pragma_application_id, pragma_user_version"
        tables, application, version = opened.execute(ask).fetchone()
        if tables and application != _APPLICATION:
            raise self._unusable("the file is another program's")
        if version > FORMAT:
            raise self._unusable(f"it has format {version}, and this reliq knows {FORMAT}")
        return int(version)

    @contextmanager
    def _transaction(
        self, *, most_bytes: int = 0, fsync: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction; raises ReliqError, and then nothing is changed.

        *most_bytes*: how large the file may grow by it. *fsync*: it is on the disk afterwards.
        """
        with self._lock:
            try:
                opened = self._open()
                opened.execute(f"PRAGMA max_page_count = {most_bytes // _PAGE or 2**31 - 1}")
                opened.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
                opened.execute("BEGIN IMMEDIATE")
                try:
                    yield opened
                    opened.execute("COMMIT")
                except BaseException:
                    if opened.in_transaction:
                        opened.execute("ROLLBACK")
                    raise
            except sqlite3.Error as exc:
                raise self._in_words(str(exc)) from exc

    def _rows(self, query: str) -> list[tuple[object, ...]]:
        with self._lock:
            try:
                return self._open().execute(query).fetchall()
            except sqlite3.Error as exc:
                raise self._in_words(str(exc)) from exc

    def _in_words(self, text: str) -> ReliqError:
        if "disk is full" in text or "disk I/O" in text:
            return BrokerRefused(
                f"{self}: the spool has reached spool_max ({self._most_bytes} bytes), or the disk "
                "is full; nothing was stored: raise spool_max, free space on the disk, or wait "
                "until a broker answers and the spool is forwarded"
            )
        if "locked" in text:
            return BrokerUnavailable(
                f"{self}: locked by another process for more than {self._timeout_s:g} s "
                "(socket_timeout); nothing was stored: is one of them stopped?"
            )
        if "not a database" in text:
            return self._unusable("the file is another program's")
        return BrokerRefused(
            f"{self}: {text}; nothing was stored. Move the file away and save what can be read: "
            f"sqlite3 {self.path} .recover"
        )

    # -- publishing

    def add(self, items: Sequence[Spooled], *, fsync: bool = False) -> None:
        """Append publishes, all or none; raises ReliqError. *fsync*: they are on the disk then."""
        query = f"INSERT INTO publishes ({_COLUMNS}) VALUES (?{', ?' * 13})"  # noqa: S608 - constants
        with self._transaction(most_bytes=self._most_bytes, fsync=fsync) as opened:
            opened.executemany(query, [item[:14] for item in items])

    def declare(self, kind: str, name: str, body: bytes) -> None:
        """Note what a publisher declared: it is declared before anything is forwarded."""
        query = "INSERT OR IGNORE INTO declarations (kind, name, body) VALUES (?, ?, ?)"
        with self._transaction() as opened:
            opened.execute(query, (kind, name, body))

    # -- forwarding

    @contextmanager
    def forwarding(self) -> Iterator[bool]:
        """Be the only process that forwards; False where another one does.

        Two would do no harm, since numbers tell what was stored, but do the work twice.
        """
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{self.path}-forwarding", flags, 0o600)
        try:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def declarations(self) -> list[tuple[str, str, bytes]]:
        """Return (kind, name, body) of what was declared, in order."""
        return self._rows("SELECT kind, name, body FROM declarations ORDER BY id")  # type: ignore[return-value]

    def take(self, after: int, broker: str, data: str) -> tuple[list[Spooled], str, int]:
        """Return the next publishes after *after* that may go to *broker*, as they were before.

        And the name under which the spool numbers them, and the number below which nothing waits.
        They are noted as sent there: until that is known, or for a day, they go nowhere else.
        """
        now, found, size = int(time() * 1000), list[Spooled](), 0
        query = (
            f"SELECT {_COLUMNS}, id FROM publishes WHERE id > ? AND "  # noqa: S608 - constants
            "(broker IS NULL OR broker = ? OR sent_ms < ?) ORDER BY id LIMIT ?"
        )
        note = "UPDATE publishes SET broker = ?, data = ?, sent_ms = ? WHERE id = ?"
        about = "SELECT value, (SELECT min(id) FROM publishes) FROM about WHERE name = 'publisher'"
        with self._transaction() as opened:
            for row in opened.execute(query, (after, broker, now - LONG_MS, BATCH)):
                item = Spooled(*row)
                size += len(item.envelope)
                if found and size > BATCH_BYTES:
                    break
                found.append(item)
            sent = [(broker, data, now, item.id) for item in found if item.broker != broker]
            opened.executemany(note, sent)
            publisher, lowest = opened.execute(about).fetchone()
        return found, publisher, lowest or 0

    def done(self, ids: Iterable[int], **counts: int) -> None:
        """Remove publishes that need no more, and count what became of them."""
        count = "INSERT INTO about VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + ?"
        with self._transaction() as opened:
            opened.executemany("DELETE FROM publishes WHERE id = ?", [(one,) for one in ids])
            opened.executemany(count, [(name, n, n) for name, n in counts.items() if n])

    # -- looking

    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._rows("SELECT 1 FROM publishes LIMIT 1")

    def waiting(self) -> list[tuple[str, str, int, int]]:
        """Return (exchange, routing key, number, time of the oldest) of what waits, by route."""
        return self._rows(  # type: ignore[return-value]
            "SELECT exchange, routing_key, count(*), min(stored_ms) FROM publishes "
            "GROUP BY exchange, routing_key ORDER BY min(id)"
        )

    def counts(self) -> dict[str, int]:
        """Return what became of what was spooled: forwarded, expired, dropped, doubtful."""
        found: dict[Any, Any] = dict(self._rows("SELECT name, value FROM about"))  # type: ignore[arg-type]
        return {n: found.get(n, 0) for n in ("forwarded", "expired", "dropped", "doubtful")}


class Journals:
    """The journals of this process, by path: threads and transports share one."""

    _lock = OwnLock()

    def __init__(self) -> None:
        self._journals: dict[tuple[str, int, float], Journal] = {}

    def at(self, path: str, options: Options) -> Journal:
        """Return the journal at *path*, that of a URL; raises ConfigurationError; opens nothing."""
        if not path or path == "/" or "\0" in path:
            raise ConfigurationError(
                f"expected a file in the URL of the spool: {SCHEME}:////absolute/path.db, or "
                f"{SCHEME}:///relative.db, got: {path!r}"
            )
        absolute = os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - links are refused
        place = (absolute, options.spool_max, options.socket_timeout)
        with self._lock:
            return self._journals.setdefault(place, Journal(*place))

    def at_url(self, url: str, options: Options) -> Journal:
        """Return the journal that *url* names, which may be a mere path."""
        path = url.partition("://")[2].partition("/")[2] if "://" in url else url
        return self.at(unquote(path), options)

    def hold(self) -> None:
        """Have no file open while the process forks: SQLite's locks are a process's own."""
        for journal in list(self._journals.values()):
            journal.hold()

    def release(self) -> None:
        """Let files be opened again after a fork."""
        for journal in list(self._journals.values()):
            journal.release()


JOURNALS = Journals()
register(Part("spools", hold=JOURNALS.hold, release=JOURNALS.release))
