"""Opening a file: found or made, of our version, and set up as transactions expect it."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING

from ...errors import ConfigurationError
from .owners import require_own
from .schema import VERSION, bring_up_to_date, version_of

if TYPE_CHECKING:
    from .location import Location

_OLDEST = (3, 24)  # ON CONFLICT ... DO UPDATE
# Pages in the log before they are written to the file: rarely, as that waits for the disk.
# Of 4096 bytes, as a new file has them. The reserve must have room for it (disk_reserve.py).
_CHECKPOINT_PAGES = 1000


def require_file(where: Location, create: bool) -> None:
    """Make sure that there is a file, which *create* makes; raises ConfigurationError."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise ConfigurationError(
            f"{where}: expected SQLite 3.24 or newer in this Python, got: {sqlite3.sqlite_version}"
        )
    if create:
        where.create()
    else:
        where.require()
    require_own(where)


def prepare(raw: sqlite3.Connection, where: Location, create: bool, synchronous: str) -> None:
    """Make the tables or bring them up to date, and set how *raw* writes.

    Raises ConfigurationError, also for an empty file unless *create*, and sqlite3.Error.
    """
    raw.execute("BEGIN")  # at one instant: another process may be making the tables now
    try:
        version = version_of(raw, where)
    finally:
        with suppress(sqlite3.Error):
            raw.execute("ROLLBACK")
    if version == 0 and not create:
        raise ConfigurationError(
            f"{where}: the file is empty: no application has used it as its broker yet; "
            "correct the URL, or start the application"
        )
    # Whatever its version: a backup has been made without (VACUUM INTO).
    (mode,) = raw.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigurationError(
            f"{where}: its file system cannot share memory between processes "
            "(is it on a network?): name a file on a local disk"
        )
    if version != VERSION:
        raw.execute("BEGIN IMMEDIATE")
        try:
            bring_up_to_date(raw, where)
            raw.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                raw.execute("ROLLBACK")
            raise
    raw.execute(f"PRAGMA synchronous = {synchronous}")
    raw.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
