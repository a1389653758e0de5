"""Where a broker is: its file, what lies beside it, and what errors about it say."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from ...errors import (
    BrokerRefused,
    BrokerTimeout,
    BrokerUnavailable,
    ConfigurationError,
    ReliqError,
)
from .standing import alone, clear_place

SCHEME = "reliq-sqlite"


class DiskFull(BrokerRefused):
    """The disk is full; nothing was stored."""


@dataclass(frozen=True, slots=True)
class Location:
    """The file of a broker; its path is absolute, and holds nothing secret."""

    path: str

    def __str__(self) -> str:
        """Return the URL that names it."""
        return f"{SCHEME}:///{self.path}"

    @property
    def notifications(self) -> str:
        """The directory of FIFOs and presence locks."""
        return f"{self.path}-notifications"

    def create(self) -> None:
        """Create the file, for its owner alone, unless there is one.

        Raises ConfigurationError. Never opens a file that exists: closing it again would
        drop the locks that SQLite holds on it in this process.
        """
        if Path(self.path).is_dir():
            raise ConfigurationError(
                f"{self}: expected a file of messages, found something else (a directory?)"
            )
        try:
            self._make()
        except FileExistsError:
            pass  # a link that leads nowhere: whoever opens it says so
        except FileNotFoundError as exc:
            raise self._no_directory() from exc
        except OSError as exc:
            raise ConfigurationError(
                f"{self}: the file cannot be created ({exc.strerror}): let this user write to the "
                "directory, or name another file"
            ) from exc

    def _make(self) -> None:
        if Path(self.path).exists():
            return
        with alone(self.path):
            if not Path(self.path).exists():
                clear_place(self.path)
                flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
                os.close(os.open(self.path, flags, 0o600))

    def require(self) -> None:
        """Raise ConfigurationError unless there is a file: who only looks creates none."""
        if Path(self.path).exists():
            return
        if not Path(self.path).parent.is_dir():
            raise self._no_directory()
        raise ConfigurationError(
            f"{self}: there is no such file: correct the URL, or start the application, which "
            "creates it"
        )

    def _no_directory(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self}: there is no directory {str(Path(self.path).parent)!r}: create it, or "
            f"correct the URL ({SCHEME}:////absolute/path.db, or {SCHEME}:///relative.db)"
        )


def location(path: str | None) -> Location:
    """Return the location of *path*, relative to the working directory, in which ~ is the home.

    It is what follows ``reliq-sqlite:///``, unquoted. Raises ConfigurationError.
    """
    if not path or path == "/":
        raise ConfigurationError(
            f"expected a file in the URL: {SCHEME}:////absolute/path.db, or {SCHEME}:///relative.db"
        )
    if "\0" in path:
        raise ConfigurationError(f"expected a path without NUL in the URL, got: {path!r}")
    # One file has one name: what lies beside it is found by it.
    return Location(str(Path(path).expanduser().resolve()))


def full(where: Location) -> DiskFull:
    """Return what a full disk is to a user."""
    return DiskFull(
        f"{where}: the disk is full, or has less than 8 MB left; nothing was stored. Free space "
        "on its file system; what is in the file can be consumed meanwhile"
    )


def moved(where: Location) -> BrokerUnavailable:
    """Return what a file that was removed or replaced is to a user."""
    return BrokerUnavailable(
        f"{where}: the file was removed or replaced while it was in use: what it held is where it "
        "has gone; connect again to use what is there now"
    )


def is_busy(exc: sqlite3.Error) -> bool:
    """Whether another connection was in the way, for now."""
    return "locked" in str(exc) or "locking protocol" in str(exc)


def is_shut(exc: sqlite3.Error) -> bool:
    """Whether the file cannot be opened, for a reason that a full disk may be."""
    return any(words in str(exc) for words in ("disk is full", "disk I/O error", "unable to open"))


# What SQLite says, and what that is to a user.
_REFUSED = (
    (
        ("readonly", "read-only"),
        (
            "the file is read-only for this user; nothing was stored. Let this user write the "
            "file, and beside it"
        ),
    ),
    (
        ("not a database", "malformed"),
        (
            "the file is corrupt, or no SQLite file ({text}). Move it away and save what can be "
            "read: sqlite3 {path} .recover"
        ),
    ),
    (
        ("Could not decode",),
        "the file holds text that is none ({text}); find out who writes to it",
    ),
    (
        ("unable to open",),
        (
            "the file, or what SQLite keeps beside it (-wal, -shm), cannot be opened: this user "
            "must be able to read and write them, and the directory"
        ),
    ),
)


def translate(exc: sqlite3.Error, where: Location, timeout_s: float) -> ReliqError:
    """Return what *exc* is to a user. BrokerUnavailable: the connection is of no more use."""
    text = str(exc)
    if is_busy(exc):
        return BrokerTimeout(
            f"{where}: locked by another process for more than {timeout_s:g} s (socket_timeout): "
            "is one of them stopped, or does another program hold a transaction open?"
        )
    if "disk is full" in text:
        return full(where)
    for words, said in _REFUSED:
        if any(word in text for word in words):
            return BrokerRefused(f"{where}: {said.format(text=text, path=where.path)}")
    if isinstance(exc, sqlite3.OperationalError):
        return BrokerUnavailable(f"{where}: {text}")
    return BrokerRefused(f"{where}: {text}")
