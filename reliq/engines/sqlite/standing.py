"""Standing: whether the file that is open is still the one at its path.

SQLite goes on with a file that was removed or moved away: what it stores there is found by
nobody who opens the path. And who opens another file there finds the log of the old one beside
it, which SQLite would take for its own. So each transaction looks, and who finds another file
lets go of the old one whole.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG = ("-wal", "-shm")
_WAIT_S = 5.0
_LOOK_S = 0.005

Identity: TypeAlias = "tuple[int, int]"


def identity(path: str) -> Identity | None:
    """Return what tells the file at *path* from any other there is; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - with every transaction
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Standing:
    """What was found at the path of a broker, and beside it, when it was opened."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Identity | None = None
        self._log: dict[str, Identity | None] = {}

    def note(self, opened: Identity | None) -> None:
        """Remember what was at the path before the file was opened, and its log."""
        self._file = opened
        log = {suffix: identity(self._path + suffix) for suffix in _LOG}
        # Where it was replaced meanwhile, the log is not its own perhaps.
        self._log = log if self.holds() else {}

    def holds(self) -> bool:
        """Whether the file is where it was opened."""
        return self._file is not None and self._file == identity(self._path)

    def clear_away_if_moved(self) -> None:
        """Remove it where another file is there now.

        Only while the one that was opened is open: what is closed may have given its number on.
        """
        if self._file is not None and not self.holds():
            self.clear_away()

    def clear_away(self) -> None:
        """Remove the log of the file that was opened from beside the one that is there now."""
        with alone(self._path):
            for suffix, known in self._log.items():
                path = self._path + suffix
                if known is not None and known == identity(path):
                    with suppress(OSError):
                        Path(path).unlink()


def clear_place(path: str) -> None:
    """Remove what another file has left where one is to be made: under :func:`alone`.

    Who still has that open has an index in shared memory there, that is not the new file's.
    """
    for suffix in _LOG:
        with suppress(OSError):
            Path(path + suffix).unlink()


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Make and remove files beside *path* with no other process doing so meanwhile.

    Not where the directory cannot be locked, nor against one that has been frozen for long.
    """
    fd = None
    try:
        with suppress(OSError):
            fd = os.open(Path(path).parent, os.O_RDONLY | os.O_CLOEXEC)
            deadline = monotonic() + _WAIT_S
            while not _locked(fd) and monotonic() < deadline:
                sleep(_LOOK_S)
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
