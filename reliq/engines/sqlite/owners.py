"""Whose what lies at a path is: nothing of another user's is written, followed or removed.

In a directory that others write to, ``/tmp`` above all, anybody may have made what we expect
to find: the file of messages, what SQLite keeps beside it, the directory of notifiers.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import BrokerRefused, ConfigurationError

if TYPE_CHECKING:
    from .location import Location

_ROOT = 0
_RESERVE = "-reserve"
_BESIDE = ("-wal", "-shm", "-journal", _RESERVE)
# Never through a link, and never waiting for the other end of a FIFO.
OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def require_own(where: Location) -> None:
    """Raise ConfigurationError unless the file and what lies beside it may be trusted.

    They belong to this user, to root, or to the owner of the file where somebody has put it
    for us: into a directory that not everybody may write. Root takes any owner's file.
    """
    trusted = {os.geteuid(), _ROOT}
    with suppress(FileNotFoundError):
        found = os.lstat(where.path)
        if not stat.S_ISREG(found.st_mode):
            raise _refused(where, where.path, found, "is no file (a link, a directory?)")
        if found.st_uid not in trusted:
            if os.geteuid() != _ROOT and not _is_placed(where.path, found.st_uid):
                raise _refused(where, where.path, found, "belongs to somebody else")
            trusted.add(found.st_uid)
    for suffix in _BESIDE:
        with suppress(FileNotFoundError):
            path = f"{where.path}{suffix}"
            found = os.lstat(path)
            if found.st_uid not in trusted:
                raise _refused(where, path, found, "belongs to somebody else")
            # The reserve is opened through no link, and done without where it is one.
            if suffix != _RESERVE and not stat.S_ISREG(found.st_mode):
                raise _refused(where, path, found, "is no file (a link, a directory?)")
    with suppress(FileNotFoundError):
        _require_directory(where, trusted)


def make_notifications(where: Location) -> str:
    """Return the directory of FIFOs and locks, made if need be.

    Raises BrokerRefused, and ConfigurationError where it is somebody else's.
    """
    try:
        Path(where.notifications).mkdir(0o700)
    except FileExistsError:
        pass
    except OSError as exc:
        raise BrokerRefused(
            f"{where}: the directory {where.notifications!r}, on which consumers wait, cannot be "
            f"made ({exc.strerror}): let this user write beside the file"
        ) from exc
    _require_notifications(where)
    return where.notifications


def _require_notifications(where: Location) -> None:
    """Raise ConfigurationError unless the directory of notifiers is there, and to be trusted."""
    with suppress(FileNotFoundError):
        _require_directory(where, {os.geteuid(), _ROOT, os.lstat(where.path).st_uid})
        return
    # There may be none of messages yet, in a test.
    _require_directory(where, {os.geteuid(), _ROOT})


def _require_directory(where: Location, trusted: set[int]) -> None:
    found = os.lstat(where.notifications)
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(where, where.notifications, found, "is no directory (a link?)")
    if found.st_uid not in trusted:
        raise _refused(where, where.notifications, found, "belongs to somebody else")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise _refused(where, where.notifications, found, f"may be written by others (mode {mode})")


def _is_placed(path: str, owner: int) -> bool:
    """Whether a file of *owner* is where only they, root or we can have put it."""
    directory = os.lstat(Path(path).parent)
    own = directory.st_uid in {os.geteuid(), _ROOT, owner}
    return own and not directory.st_mode & stat.S_IWOTH


def is_fifo(fd: int) -> bool:
    """Whether what was opened is a FIFO, as a notifier is."""
    return stat.S_ISFIFO(os.fstat(fd).st_mode)


def is_lock(fd: int) -> bool:
    """Whether what was opened is a file with one name, as a lock is."""
    found = os.fstat(fd)
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def _refused(where: Location, path: str, found: os.stat_result, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: {path!r} {what}; its owner is user {found.st_uid}, and this is user "
        f"{os.geteuid()}. Whoever made it could read, change or misuse what this broker keeps: "
        "remove it, or keep the broker in a directory that only this user may write"
    )
