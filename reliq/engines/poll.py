"""Waits for descriptors, also where the process has no poll; and a pipe that ends such a wait."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from io import FileIO
from typing import TYPE_CHECKING

from ..forks import OwnLock, here

if TYPE_CHECKING:
    from collections.abc import Sequence


# eventlet lets one green thread wait for a descriptor: the second looks at it so often.
_LOOK_AGAIN_S = 0.01
_LONGEST_S = 2_000_000  # a poll can wait for no longer


def many_may_wait() -> bool:
    """Whether several threads may wait for one descriptor: not those of eventlet."""
    return getattr(select, "poll", None) is not None


def readable(descriptors: Sequence[int], timeout_s: float) -> list[int]:
    """Return those of *descriptors* that can be read, closed ones too; wait *timeout_s* for one.

    Rounded up to whole ms: a wait that ended just before its time would only begin again.
    """
    poller = _poller()
    if poller is None:
        return _select(descriptors, (), timeout_s)
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(_milliseconds(timeout_s))]


def usable(descriptor: int, timeout_s: float) -> None:
    """Wait up to *timeout_s* until *descriptor* takes bytes, or fails to; or can be read."""
    poller = _poller()
    if poller is None:
        _select((descriptor,), (descriptor,), timeout_s)
        return
    poller.register(descriptor, select.POLLOUT | select.POLLIN)
    poller.poll(_milliseconds(timeout_s))


class Readable:
    """Waits again and again for the same descriptor; one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poller: select.poll | None = None
        self._made_by: object = None

    def wait(self, timeout_s: float) -> None:
        """Wait up to *timeout_s* until it is readable, or closed."""
        # Taken away meanwhile: a signal's handler may wait here, too, within a wait.
        poller, self._poller = self._poller, None
        try:
            made_by: object = select.poll
        except AttributeError:  # see _poller
            made_by = None
        if poller is None or made_by is not self._made_by:
            poller = _poller()
            if poller is None:
                _select((self._descriptor,), (), timeout_s)
                return
            poller.register(self._descriptor, select.POLLIN)
        poller.poll(_milliseconds(timeout_s))
        if type(poller).__module__ == "select":  # gevent's belongs to the thread that made it
            self._poller, self._made_by = poller, made_by


def _select(readers: Sequence[int], writers: Sequence[int], timeout_s: float) -> list[int]:
    try:
        return select.select(readers, writers, (), max(timeout_s, 0.0))[0]
    except RuntimeError:
        if len({*readers, *writers}) > 1:  # those before it may be waited for still
            raise
        time.sleep(min(max(timeout_s, 0.0), _LOOK_AGAIN_S))
        return list(readers)  # for all that is known


def _poller() -> select.poll | None:
    # Looked up late: eventlet takes it away, because it would stop all green threads, and
    # its own select takes any descriptor.
    poll = getattr(select, "poll", None)
    return None if poll is None else poll()


def _milliseconds(timeout_s: float) -> int:
    if timeout_s <= 0:
        return 0
    return int(timeout_s * 1000) + 1 if timeout_s < _LONGEST_S else _LONGEST_S * 1000


class Pipe:
    """Wakes a thread that waits for descriptors: opened when it is first waited for.

    A child has one of its own. It is read and written by readv and writev: eventlet replaces
    os.read and os.write by ones that wait until there is something, or room, whatever the
    descriptor's mode. Its ends are files: one that nobody has closed is closed without a line of
    Python, in which a signal's handler would run, and what that raises would be lost.
    """

    _lock = OwnLock()
    """Guards its descriptors. Nobody waits under it."""

    def __init__(self) -> None:
        self._ends: tuple[FileIO, FileIO] | None = None
        self._process = here()

    def fileno(self) -> int:
        """Return the descriptor that is readable when somebody has written."""
        with self._lock:
            if self._process != here():  # the ends are the parent's, too
                self._close()
                self._process = here()
            if self._ends is None:
                reader, writer = os.pipe()
                self._ends = FileIO(reader, "rb"), FileIO(writer, "wb")
                for end in self._ends:
                    os.set_blocking(end.fileno(), False)
            return self._ends[0].fileno()

    def write(self, why: bytes = b"-") -> None:
        """Wake who waits; nothing where nobody ever has."""
        with self._lock:
            if self._ends is not None and self._process == here():
                with suppress(BlockingIOError):  # it is woken often enough
                    os.writev(self._ends[1].fileno(), (why,))

    def read(self) -> bytes:
        """Return what was written since."""
        with self._lock:
            if self._ends is not None and self._process == here():
                found = bytearray(4096)
                with suppress(BlockingIOError):
                    return bytes(found[: os.readv(self._ends[0].fileno(), (found,))])
        return b""

    def close(self) -> None:
        """Close it; the next wait opens another."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        ends, self._ends = self._ends, None
        for end in ends or ():
            with suppress(OSError):
                end.close()
