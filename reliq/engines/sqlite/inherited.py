"""What a child has inherited open: closed there, so that the child can open the file itself.

SQLite takes the locks of its process on a file from what it remembers, and in a child it
remembers its parent's. A second connection would believe them to be its own, and closing
the last one would clear the log away, which others may be using. So what was inherited is
closed under a lock that even this process cannot pass: then SQLite finds that somebody uses
the file, leaves the log alone, and forgets what it remembered. No file is open across a
fork that runs the hooks (open_files.py); this is for those that run none.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from ...errors import BrokerRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ...forks import Lock
    from .location import Location

# What SQLite locks of a file (https://www.sqlite.org/fileformat2.html#lockbyte): whoever
# wants it for itself alone asks for the first of these bytes before the others.
_PENDING_BYTE = 0x40000000
_LOCKED = 2 + 510
_WAIT_S = 1.0

# Never used and never closed: another thread of the parent was in the middle of a transaction.
_kept: list[sqlite3.Connection] = []
_refused: dict[tuple[int, int], str] = {}


def leave(opened: dict[sqlite3.Connection, tuple[Location, Lock]]) -> None:
    """Close, in a child, what is open of its parent's, and forget it: *opened* is empty then.

    Nothing that the parent holds or has written is touched. A file of which something
    cannot be closed is refused in this process from then on.
    """
    files: dict[Location, dict[sqlite3.Connection, Lock]] = {}
    for raw, (where, lock) in opened.items():
        files.setdefault(where, {})[raw] = lock
    opened.clear()
    for where, found in files.items():
        if not _close(where, found):
            _kept.extend(found)
            with suppress(OSError):
                _refused[_identity(where)] = str(where)


def require_left(where: Location) -> None:
    """Raise BrokerRefused where the file is one that :func:`leave` could not close."""
    if _refused and _identity(where) in _refused:
        raise BrokerRefused(
            f"{where}: this process was forked, by a program that runs no Python hooks, while a "
            "thread of its parent was using the file, so it cannot be used here: let the "
            "program run the hooks (uWSGI: py-call-osafterfork), or use the file in the "
            "children only (uWSGI: lazy-apps)"
        )


def _identity(where: Location) -> tuple[int, int]:
    found = Path(where.path).stat()
    return found.st_dev, found.st_ino


def _close(where: Location, found: Mapping[sqlite3.Connection, Lock]) -> bool:
    # A lock that is held now was held by a thread that is not here.
    if not all(lock.acquire(blocking=False) for lock in found.values()):
        return False
    if any(raw.in_transaction for raw in found):
        return False
    try:
        with _used_by_others(where):
            for raw in found:
                raw.close()
    except (OSError, sqlite3.Error):
        return False
    return True


@contextmanager
def _used_by_others(where: Location) -> Iterator[None]:
    """Let the file be locked as if another process had it open; raises OSError.

    By a lock of the open file, not of the process, which those of the same process respect.
    """
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        raise OSError("locks of open files are only known on Linux")
    try:
        fd = os.open(where.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield  # SQLite sees that it is gone, too
        return
    try:
        wanted = struct.pack("hhqqi0q", fcntl.F_RDLCK, os.SEEK_SET, _PENDING_BYTE, _LOCKED, 0)
        deadline = monotonic() + _WAIT_S
        while True:
            try:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
                break
            except BlockingIOError:  # somebody closes it, or opens it first
                if monotonic() > deadline:
                    raise
                sleep(0.001)
        yield
    finally:
        os.close(fd)
