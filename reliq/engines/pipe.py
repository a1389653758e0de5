"""A pipe by which one thread wakes another that waits for descriptors.

It is read and written by readv and writev: eventlet replaces os.read and os.write by ones that
wait until there is something, or room, whatever the descriptor's mode.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ..forks import OwnLock, here


class Pipe:
    """Opened when it is first waited for; a child has one of its own."""

    _lock = OwnLock()
    """Guards its descriptors. Nobody waits under it."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None
        self._process = here()

    def fileno(self) -> int:
        """Return the descriptor that is readable when somebody has written."""
        with self._lock:
            if self._process != here():  # the ends are the parent's, too
                self._close()
                self._process = here()
            if self._ends is None:
                self._ends = os.pipe()
                for end in self._ends:
                    os.set_blocking(end, False)
            return self._ends[0]

    def write(self, why: bytes = b"-") -> None:
        """Wake who waits; nothing where nobody ever has."""
        with self._lock:
            if self._ends is not None and self._process == here():
                with suppress(BlockingIOError):  # it is woken often enough
                    os.writev(self._ends[1], (why,))

    def read(self) -> bytes:
        """Return what was written since."""
        with self._lock:
            if self._ends is not None and self._process == here():
                found = bytearray(4096)
                with suppress(BlockingIOError):
                    return bytes(found[: os.readv(self._ends[0], (found,))])
        return b""

    def close(self) -> None:
        """Close it; the next wait opens another."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        ends, self._ends = self._ends, None
        for end in ends or ():
            with suppress(OSError):
                os.close(end)

    def __del__(self) -> None:
        """Give the descriptors back where nobody has closed it."""
        self._close()
