"""What a file says of itself, and what can be wrong with it: for ``reliq doctor``."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...store.inspection import BrokerInfo, Finding, Node
from .base import StoreBase
from .disk_reserve import SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEAST_FREE = 8 * SIZE
_LARGEST_LOG = 8 * SIZE
# The pages of the file are looked at for so long at most.
_CHECKED_S = 5.0
_STEPS = 10_000


class SqliteDiagnosis(StoreBase):
    """What a store tells of its file."""

    def about(self) -> BrokerInfo:
        """Return what is known of the file; it takes its size and its log's on the disk."""
        self.connect()
        size = sum(_size(f"{self.where.path}{suffix}") for suffix in ("", "-wal"))
        return BrokerInfo(
            self.broker,
            "sqlite",
            sqlite3.sqlite_version,
            "",
            None,
            size,
            None,
            f"file, synchronous={self.options.synchronous}",
            None,
        )

    def nodes(self) -> list[Node]:
        """Return nothing: a file is no server."""
        return []

    def diagnose(self) -> list[Finding]:
        """Look at the file, its disk, and who may read it."""
        self.connect()
        return [*self._file(), *self._disk(), *self._log(), *self._rights(), self._durability()]

    def _file(self) -> Iterator[Finding]:
        """Look whether the pages of the file make sense, without being in anybody's way."""
        until = time.monotonic() + _CHECKED_S
        with self._connection.lock:
            raw = self._connection.require()
            raw.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
            try:
                (said,) = raw.execute("PRAGMA quick_check(1)").fetchone()
            except sqlite3.Error as exc:
                said = str(exc)
            finally:
                raw.set_progress_handler(None, 0)
        if said == "ok":
            yield Finding("file", "ok", "its pages make sense")
        elif "interrupted" in said:
            text = f"too large to be looked at in {_CHECKED_S:g} s"
            yield Finding("file", "info", text, f'sqlite3 {self.where.path} "PRAGMA quick_check"')
        else:
            yield Finding(
                "file",
                "error",
                f"it is damaged: {said}",
                f"stop who uses it, and save what can be read: sqlite3 {self.where.path} .recover",
            )

    def _disk(self) -> Iterator[Finding]:
        there = os.statvfs(self.where.path)
        free = there.f_bavail * there.f_frsize
        if not self._connection.reserve.keep():
            yield Finding(
                "disk",
                "error",
                "the disk is full: publishes are refused, consuming goes on",
                "free space on its file system, or start workers",
            )
        elif free < _LEAST_FREE:
            yield Finding(
                "disk",
                "warning",
                f"{free >> 20} MB are left on its file system",
                "free space: when there is none, publishes are refused",
            )
        else:
            yield Finding("disk", "ok", f"{free >> 20} MB are left on its file system")

    def _log(self) -> Iterator[Finding]:
        size = _size(f"{self.where.path}-wal")
        if size > _LARGEST_LOG:
            yield Finding(
                "log",
                "warning",
                f"{size >> 20} MB wait to be written to the file: somebody still reads what it was",
                "find the program, other than reliq, that keeps a transaction open",
            )
        else:
            yield Finding("log", "ok", f"{size >> 10} kB")

    def _rights(self) -> Iterator[Finding]:
        mode = stat.S_IMODE(Path(self.where.path).stat().st_mode)
        if mode & 0o077:
            yield Finding(
                "rights",
                "warning",
                f"others than its owner may open the file (mode {mode:04o}): whoever writes it "
                "decides what workers run",
                f"chmod 600 {self.where.path}, unless several users are to share it",
            )
        else:
            yield Finding("rights", "ok", f"for its owner alone (mode {mode:04o})")

    def _durability(self) -> Finding:
        if self.options.synchronous == "full":
            return Finding("synchronous", "ok", "full: a loss of power takes nothing")
        return Finding(
            "synchronous",
            "info",
            "normal: a loss of power takes the last moments",
            'synchronous="full", or confirm="fsynced" where it matters',
        )


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
