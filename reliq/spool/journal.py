"""The journal of a spool: publishes that wait for a broker, in one SQLite file.

Owns the file, its tables and its bound. A process opens it only while it publishes into it or
forwards from it, and never across a fork. Knows nothing of brokers and nothing of Kombu.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from ..errors import BrokerRefused, BrokerUnavailable, ConfigurationError
from ..forks import OwnLock, Part, here, register
from ..message.envelope import pack, unpack
from ..store.limits import BATCH, BATCH_BYTES, LONG_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..errors import ReliqError
    from ..forks import Lock
    from ..options import Options

SCHEME = "reliq-spool"
FORMAT = 1
_APPLICATION = 0x72656C71  # "relq": tells the file from those of other programs
_PAGE = 4096
_SIDES = ("-wal", "-shm")
_SCHEMA = """
CREATE TABLE publishes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, exchange TEXT, routing_key TEXT, tag TEXT,
    envelope BLOB, rank INTEGER, delay_ms INTEGER, ttl_ms INTEGER, creates INTEGER,
    partition_key TEXT, stored_ms INTEGER, tried BLOB, broker TEXT, data TEXT, sent_ms INTEGER);
CREATE TABLE declarations (
    id INTEGER PRIMARY KEY, kind TEXT, name TEXT, body BLOB, UNIQUE (kind, name, body));
CREATE TABLE about (name TEXT PRIMARY KEY, value);
INSERT INTO about VALUES ('publisher', lower(hex(randomblob(9))));
"""
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
    """Its tags and numbers at the broker that may have it: see :func:`numbers_in`."""
    broker: str | None = None
    """The broker that may have it: its reply was lost, or it was being forwarded there."""
    data: str | None = None
    """The id of that broker's data then."""
    sent_ms: int | None = None
    id: int = 0
    """Its place in the order, and its number under the spool's own name."""


class Waiting(NamedTuple):
    """The publishes of one route that wait in a journal."""

    exchange: str
    routing_key: str
    number: int
    oldest_ms: int


def path_of(path: str | None) -> str:
    """Return the absolute path of a spool's URL; raises ConfigurationError."""
    if not path or path == "/" or "\0" in path:
        raise ConfigurationError(
            f"expected a file in the URL of the spool: {SCHEME}:////absolute/path.db, or "
            f"{SCHEME}:///relative.db, got: {path!r}"
        )
    return os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - links are refused, not followed


def numbers_in(tried: bytes | None) -> dict[str, tuple[str, int, str]]:
    """Return by queue (tag, number, publisher) of an earlier try at a broker."""
    return {} if tried is None else {queue: tuple(found) for queue, found in unpack(tried).items()}


class Journal:
    """The file at one path. Thread-safe; its connection is of this process alone."""

    _lock = OwnLock(reentrant=True)

    def __init__(self, path: str, most_bytes: int = 0, timeout_s: float = 10.0) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self._timeout_s = timeout_s
        self._opened: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._process = 0
        self._synchronous = "NORMAL"
        self._held: list[Lock] = []

    def __str__(self) -> str:
        """Return the URL that names it."""
        return f"{SCHEME}:///{self.path}"

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return os.path.lexists(self.path)

    # -- the connection

    def check(self) -> None:
        """Make the file where there is none, and see that it can be used; raises ReliqError."""
        with self._lock, self._transaction(writes=False):
            pass
        self.close()

    def close(self) -> None:
        """Let go of the file until it is used again."""
        with self._lock:
            if self._opened is not None and self._process == here():
                self._opened.close()
                self._opened = None

    def hold(self) -> None:
        """Close the file and let nobody open it before :meth:`release`."""
        lock = self._lock
        lock.acquire()
        self._held.append(lock)
        self.close()

    def release(self) -> None:
        """Undo :meth:`hold`."""
        if self._held:
            self._held.pop().release()

    def _open(self) -> sqlite3.Connection:
        if self._opened is not None:
            if self._process != here():
                raise BrokerRefused(
                    f"{self}: this process was forked, by a program that runs no Python hooks, "
                    "while its parent used the spool: let the program run the hooks (uWSGI: "
                    "py-call-osafterfork), or publish in the children only"
                )
            if self._found() == self._identity:
                return self._opened
            raise BrokerRefused(
                f"{self}: the file was removed or replaced while it was in use; nothing was "
                "stored: restart this process"
            )
        self._make()
        opened = sqlite3.connect(
            f"file:{quote(self.path)}?mode=rw",
            uri=True,
            timeout=self._timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._prepare(opened)
        except BaseException:
            opened.close()
            raise
        self._opened, self._identity, self._process = opened, self._found(), here()
        self._synchronous = "NORMAL"
        return opened

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path, follow_symlinks=False)  # noqa: PTH116 - with every publish
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _make(self) -> None:
        """Create the file for its owner alone; refuse what others have put there."""
        try:
            flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            os.close(os.open(self.path, flags, 0o600))
            for side in ("", *_SIDES):
                with suppress(FileNotFoundError):
                    self._require_own(os.lstat(self.path + side))
        except OSError as exc:
            raise ConfigurationError(
                f"{self}: the spool cannot be opened ({exc.strerror}): let this user write to the "
                "directory, and name a file that is no link"
            ) from exc

    def _require_own(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise ConfigurationError(
                f"{self}: the spool has to be a file of this user (uid {os.geteuid()}), and no "
                "link: remove what is there, or name another file"
            )
        if found.st_mode & 0o077:
            raise ConfigurationError(
                f"{self}: other users may open the spool: chmod 600 {self.path}, and what is "
                "beside it"
            )

    def _prepare(self, opened: sqlite3.Connection) -> None:
        opened.execute(f"PRAGMA page_size = {_PAGE}")
        self._require_ours(opened)
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("PRAGMA synchronous = NORMAL")
        opened.execute("BEGIN IMMEDIATE")
        try:
            if self._require_ours(opened) == 0:
                for statement in _SCHEMA.split(";\n"):
                    opened.execute(statement)
                opened.execute(f"PRAGMA application_id = {_APPLICATION}")
                opened.execute(f"PRAGMA user_version = {FORMAT}")
            opened.execute("COMMIT")
        except BaseException:
            opened.execute("ROLLBACK")
            raise

    def _require_ours(self, opened: sqlite3.Connection) -> int:
        """Return the format of the file, 0 for an empty one; raises ConfigurationError."""
        (application,) = opened.execute("PRAGMA application_id").fetchone()
        (version,) = opened.execute("PRAGMA user_version").fetchone()
        (tables,) = opened.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION:
            raise ConfigurationError(
                f"{self}: the file is another program's; nothing was changed: name another file"
            )
        if version > FORMAT:
            raise ConfigurationError(
                f"{self}: the spool has format {version}, and this reliq knows formats up to "
                f"{FORMAT}; nothing was changed: upgrade reliq, or name another file"
            )
        return int(version)

    @contextmanager
    def _transaction(
        self, *, writes: bool = True, bounded: bool = False, fsync: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction; raises ReliqError, and then nothing is changed.

        *bounded*: only up to ``spool_max``. *fsync*: it is on the disk afterwards.
        """
        with self._lock:
            try:
                opened = self._open()
                if writes:
                    most = self._most_bytes // _PAGE if bounded and self._most_bytes else 2**31 - 1
                    opened.execute(f"PRAGMA max_page_count = {most}")
                    wanted = "FULL" if fsync else "NORMAL"
                    if wanted != self._synchronous:
                        opened.execute(f"PRAGMA synchronous = {wanted}")
                        self._synchronous = wanted
                opened.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                try:
                    yield opened
                    opened.execute("COMMIT")
                except BaseException:
                    if opened.in_transaction:
                        opened.execute("ROLLBACK")
                    raise
            except sqlite3.Error as exc:
                raise self._in_words(exc) from exc

    def _in_words(self, exc: sqlite3.Error) -> ReliqError:
        text = str(exc)
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
            return ConfigurationError(
                f"{self}: the file is another program's; nothing was changed: name another file"
            )
        return BrokerRefused(
            f"{self}: {text}; nothing was stored. Move the file away and save what can be read: "
            f"sqlite3 {self.path} .recover"
        )

    # -- publishing

    def add(self, items: Sequence[Spooled], *, fsync: bool = False) -> None:
        """Append publishes, all or none; raises ReliqError. *fsync*: they are on the disk then."""
        places = ", ".join("?" * 14)
        with self._transaction(bounded=True, fsync=fsync) as opened:
            opened.executemany(
                f"INSERT INTO publishes ({_COLUMNS}) VALUES ({places})",  # noqa: S608 - constants
                [item[:14] for item in items],
            )

    def declare(self, kind: str, name: str, body: bytes) -> None:
        """Note what a publisher declared: it is declared before anything is forwarded."""
        with self._transaction() as opened:
            opened.execute(
                "INSERT OR IGNORE INTO declarations (kind, name, body) VALUES (?, ?, ?)",
                (kind, name, body),
            )

    # -- forwarding

    @contextmanager
    def forwarding(self) -> Iterator[bool]:
        """Be the only process that forwards; False where another one does.

        Two would do no harm, since numbers tell what was stored, but the work would be done twice.
        """
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{self.path}-forwarding", flags, 0o600)
        try:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True
        finally:
            os.close(descriptor)

    def declarations(self) -> list[tuple[str, str, bytes]]:
        """Return (kind, name, body) of what was declared, in order."""
        with self._transaction(writes=False) as opened:
            return list(
                opened.execute("SELECT kind, name, body FROM declarations ORDER BY id").fetchall()
            )

    def publisher(self) -> str:
        """Return the name under which the spool numbers what no broker was asked to store."""
        with self._transaction(writes=False) as opened:
            return str(
                opened.execute("SELECT value FROM about WHERE name = 'publisher'").fetchone()[0]
            )

    def take(self, after: int, broker: str, data: str) -> list[Spooled]:
        """Return the next publishes after *after* that may go to *broker*, as they were before.

        They are noted as sent there: until that is known, or for a day, they go nowhere else.
        """
        now = int(time() * 1000)
        with self._transaction() as opened:
            found: list[Spooled] = []
            size = 0
            for row in opened.execute(
                f"SELECT {_COLUMNS}, id FROM publishes WHERE id > ? AND "  # noqa: S608 - constants
                "(broker IS NULL OR broker = ? OR sent_ms < ?) ORDER BY id LIMIT ?",
                (after, broker, now - LONG_MS, BATCH),
            ):
                item = Spooled(*row)
                size += len(item.envelope)
                if found and size > BATCH_BYTES:
                    break
                found.append(item)
            opened.executemany(
                "UPDATE publishes SET broker = ?, data = ?, sent_ms = ? WHERE id = ?",
                [(broker, data, now, item.id) for item in found if item.broker != broker],
            )
        return found

    def lowest(self) -> int:
        """Return the number below which nothing waits."""
        with self._transaction(writes=False) as opened:
            row = opened.execute("SELECT min(id) FROM publishes").fetchone()
            return int(row[0] or 0)

    def done(self, ids: Iterable[int], **counts: int) -> None:
        """Remove publishes that need no more, and count what became of them."""
        with self._transaction() as opened:
            opened.executemany("DELETE FROM publishes WHERE id = ?", [(one,) for one in ids])
            opened.executemany(
                "INSERT INTO about VALUES (?, ?) ON CONFLICT (name) DO UPDATE "
                "SET value = value + excluded.value",
                [(f"count:{name}", n) for name, n in counts.items() if n],
            )

    # -- looking

    def waiting(self) -> list[Waiting]:
        """Return what waits, by route, the oldest first."""
        with self._transaction(writes=False) as opened:
            return [
                Waiting(*row)
                for row in opened.execute(
                    "SELECT exchange, routing_key, count(*), min(stored_ms) FROM publishes "
                    "GROUP BY exchange, routing_key ORDER BY min(id)"
                )
            ]

    def is_empty(self) -> bool:
        """Whether nothing waits."""
        with self._transaction(writes=False) as opened:
            return opened.execute("SELECT 1 FROM publishes LIMIT 1").fetchone() is None

    def counts(self) -> dict[str, int]:
        """Return what became of what was spooled: forwarded, expired, dropped, doubtful."""
        with self._transaction(writes=False) as opened:
            rows = opened.execute("SELECT name, value FROM about WHERE name LIKE 'count:%'")
            found = {name.partition(":")[2]: value for name, value in rows}
        return {n: found.get(n, 0) for n in ("forwarded", "expired", "dropped", "doubtful")}

    @property
    def bytes(self) -> int:
        """The size of the file, and of what SQLite keeps beside it."""
        size = 0
        for side in ("", *_SIDES):
            with suppress(OSError):
                size += os.lstat(self.path + side).st_size
        return size


def tried(numbers: dict[str, tuple[str, int, str]]) -> bytes | None:
    """Return the numbers of an earlier try as they are kept: the reverse of numbers_in."""
    return pack({queue: list(found) for queue, found in numbers.items()}) if numbers else None


class Journals:
    """The journals of this process, by path: threads and transports share one."""

    _lock = OwnLock()

    def __init__(self) -> None:
        self._journals: dict[tuple[str, int, float], Journal] = {}

    def at(self, path: str, most_bytes: int = 0, timeout_s: float = 10.0) -> Journal:
        """Return the journal at *path*; nothing is opened by this."""
        with self._lock:
            place = (path, most_bytes, timeout_s)
            return self._journals.setdefault(place, Journal(*place))

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


def journal_at(virtual_host: str | None, options: Options) -> Journal:
    """Return the journal at the path of a spool's URL; raises ConfigurationError."""
    return JOURNALS.at(path_of(virtual_host), options.spool_max, options.socket_timeout)
