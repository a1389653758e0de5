"""A pipe by which one thread wakes another that waits for descriptors.

It is read and written by readv and writev: eventlet replaces os.read and os.write by ones that
wait until there is something, or room, whatever the descriptor's mode.

Its ends are files: one that nobody has closed is closed without a line of Python, in which a
signal's handler would run, and what that raises would be lost.
"""

from __future__ import annotations

import os
from contextlib import suppress
from io import FileIO

from ..forks import OwnLock, here


class Pipe:
    """Opened when it is first waited for; a child has one of its own."""

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
