"""Presence: whether the process behind a connection lives, whatever became of its pid.

A connection that consumes holds a lock on a file of its own beside the broker's file.
It is a POSIX lock: it ends with its process, however that ends, and a forked child
does not share it.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...forks import Part, here, register
from . import notifications
from .owners import OPEN, is_lock, make_notifications

if TYPE_CHECKING:
    from .location import Location

# What this process holds. It must never probe these: to close such a file drops the lock.
_held: dict[str, int] = {}
_LEFT_ALONE_S = 60.0
# Pid and random: what stores and notifiers call themselves.
_OURS = re.compile(r"\d+-[0-9a-f]{12}")


def _forked() -> None:
    # A child holds no lock of its parent's; closing its copies drops nothing.
    for fd in _held.values():
        with suppress(OSError):
            os.close(fd)
    _held.clear()


register(Part("locks of files", forget=_forked))


def _path(where: Location, name: str) -> str:
    return f"{where.notifications}/{name}.lock"


def hold(where: Location, name: str) -> None:
    """Be present as *name* until :func:`leave`, or this process ends."""
    make_notifications(where)
    here()  # locks of the parent's are left
    path = _path(where, name)
    if path not in _held:
        _held[path] = _lock(path)


def _lock(path: str) -> int:
    fd = os.open(path, os.O_CREAT | os.O_RDWR | OPEN, 0o600)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    return fd


def stay(where: Location, name: str) -> None:
    """Keep our file from those who clear away what is old, and make it anew if one has."""
    path = _path(where, name)
    fd = _held.get(path)
    if fd is None:
        return
    if Path(path).exists():
        os.utime(fd)
    else:
        make_notifications(where)
        _held[path] = _lock(path)
        os.close(fd)


def leave(where: Location, name: str) -> None:
    """Be present as *name* no more."""
    path = _path(where, name)
    fd = _held.pop(path, None)
    if fd is not None:
        with suppress(OSError):
            Path(path).unlink()
        with suppress(OSError):
            os.close(fd)


def present(where: Location, name: str) -> bool:
    """Whether the process that is present as *name* lives; what a dead one left is removed."""
    path = _path(where, name)
    if path in _held:
        return True
    if "/" in name:  # as it stands in the table, which others may have written
        return False
    try:
        fd = os.open(path, os.O_RDWR | OPEN)
    except OSError:
        return False
    if not is_lock(fd):
        os.close(fd)
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        with suppress(OSError):
            Path(path).unlink()
        return False
    finally:
        os.close(fd)


def sweep(where: Location) -> None:
    """Remove the locks and FIFOs that dead processes have left, but for the newest.

    A new one may belong to a process that has made it just now, and not taken it yet. What
    has another name is somebody else's.
    """
    newest = time.time() - _LEFT_ALONE_S
    for path in Path(where.notifications).iterdir():
        with suppress(OSError):
            if _OURS.fullmatch(path.stem) and path.lstat().st_mtime < newest:
                look = {".lock": present, ".notification": notifications.is_dead}.get(path.suffix)
                if look is not None:
                    look(where, path.stem)
