"""Bells: how one process wakes another that waits for a message.

Who waits owns a FIFO beside the file, and its name is in the table of waiters. A
notification is the name of a queue, written there. Knows nothing of tables.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from ...errors import BrokerRefused
from .owners import OPEN, is_fifo, make_notifications

if TYPE_CHECKING:
    from .location import Location


def path_of(where: Location, notification: str) -> str:
    """Return the path of a FIFO."""
    return f"{where.notifications}/{notification}.notification"


def make(where: Location, notification: str) -> int:
    """Make a FIFO and return its descriptor, for reading and for ringing oneself."""
    make_notifications(where)
    path = path_of(where, notification)
    os.mkfifo(path, 0o600)
    # Open for writing too: without a writer it would be readable for ever, at its end.
    fd = os.open(path, os.O_RDWR | OPEN)
    if not is_fifo(fd):
        os.close(fd)
        raise BrokerRefused(
            f"{where}: {path!r} was replaced while it was made: somebody else writes to that "
            "directory; keep the broker where only this user may write"
        )
    return fd


def stands(where: Location, notification: str) -> bool:
    """Whether a FIFO is where it was made: else no notification would reach it."""
    return os.path.lexists(path_of(where, notification))


def _open(path: str) -> int:
    """Open a FIFO to write to it; raises OSError, also where there is something else."""
    fd = os.open(path, os.O_WRONLY | OPEN)
    if not is_fifo(fd):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "no FIFO", path)
    return fd


def is_dead(where: Location, notification: str) -> bool:
    """Whether the process of a FIFO is gone; what it left is then removed."""
    path = path_of(where, notification)
    try:
        os.close(_open(path))
    except OSError as exc:
        if exc.errno != errno.ENXIO:
            return exc.errno == errno.ENOENT
        with suppress(OSError):
            Path(path).unlink()
        return True
    return False


def notify(where: Location, notification: str, queue: str) -> bool:
    """Tell who waits on *notification* of *queue*; False when its process is gone."""
    if "/" in notification:  # as it stands in the table, which others may have written
        return False
    path = path_of(where, notification)
    try:
        fd = _open(path)
    except OSError as exc:
        if exc.errno == errno.ENXIO:  # nobody reads: its owner was killed
            with suppress(OSError):
                Path(path).unlink()
        return False
    try:
        os.write(fd, line(queue))
    except BlockingIOError:
        pass  # full: it wakes anyway
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def line(queue: str | None) -> bytes:
    """Return what is written for a notification of *queue*; None ends a wait without one."""
    return b"\n" if queue is None else quote(queue, safe="").encode() + b"\n"


def read(fd: int) -> list[str | None]:
    """Return the notifications that have come, without waiting."""
    data = b""
    with suppress(BlockingIOError):
        while part := os.read(fd, 65536):
            data += part
    return [unquote(item.decode("ascii", "replace")) or None for item in data.splitlines()]
