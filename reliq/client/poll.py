"""Wait for descriptors, also in a process without poll(), and interrupt such a wait."""

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


# Polling interval of a second green thread: eventlet lets only one wait for a descriptor.
_POLL_AGAIN_S = 0.01
_LONGEST_S = 2_000_000  # the longest timeout of poll()


def many_may_wait() -> bool:
    """Whether several threads may wait for one descriptor. False under eventlet."""
    return getattr(select, "poll", None) is not None


def readable(descriptors: Sequence[int], timeout_s: float) -> list[int]:
    """Wait up to *timeout_s* for a descriptor; return the readable ones, closed ones included.

    The timeout is rounded up to whole ms: a wait that ends early would only be repeated.
    """
    poller = _poller()
    if poller is None:
        return _select(descriptors, (), timeout_s)
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(_milliseconds(timeout_s))]


def usable(descriptor: int, timeout_s: float) -> None:
    """Wait up to *timeout_s* until *descriptor* is writable, has failed or is readable."""
    poller = _poller()
    if poller is None:
        _select((descriptor,), (descriptor,), timeout_s)
        return
    poller.register(descriptor, select.POLLOUT | select.POLLIN)
    poller.poll(_milliseconds(timeout_s))


class Readable:
    """Waits repeatedly for the same descriptor; for one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poller: select.poll | None = None
        self._made_by: object = None

    def wait(self, timeout_s: float) -> None:
        """Wait up to *timeout_s* until the descriptor is readable or closed."""
        # Taken out during the wait: a signal handler may wait here within this wait.
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
        if len({*readers, *writers}) > 1:  # earlier descriptors may still be registered
            raise
        time.sleep(min(max(timeout_s, 0.0), _POLL_AGAIN_S))
        return list(readers)  # they may be readable


def _poller() -> select.poll | None:
    # Looked up at each call: eventlet removes select.poll, which would block all green threads.
    # Its own select accepts any descriptor.
    poll = getattr(select, "poll", None)
    return None if poll is None else poll()


def _milliseconds(timeout_s: float) -> int:
    if timeout_s <= 0:
        return 0
    return int(timeout_s * 1000) + 1 if timeout_s < _LONGEST_S else _LONGEST_S * 1000


class Pipe:
    """Wakes a thread that waits for descriptors; opened at the first wait.

    A child opens a pipe of its own. Reads and writes use readv and writev: eventlet replaces
    os.read and os.write with versions that block, whatever the descriptor's mode. The ends are
    files: the interpreter closes an unclosed file without running Python code. A signal handler
    could run in such code, and its exception would be lost.
    """

    _lock = OwnLock()
    """Guards the descriptors. No thread blocks while it holds the lock. A nested call may open the
    pipe, whose ends are then used, or close it."""

    def __init__(self) -> None:
        self._ends: tuple[FileIO, FileIO] | None = None
        self._process = here()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable after a write."""
        with self._lock:
            if self._process != here():  # the inherited ends are the parent's
                self._close()
                self._process = here()
            while (ends := self._ends) is None:
                reader, writer = os.pipe()
                made = FileIO(reader, "rb"), FileIO(writer, "wb")
                for end in made:
                    os.set_blocking(end.fileno(), False)
                if self._ends is None:
                    self._ends = made
                else:  # opened in a signal handler
                    _close(made)
            return ends[0].fileno()

    def write(self, why: bytes = b"-") -> None:
        """Wake the waiting thread. Does nothing if no thread has ever waited."""
        with self._lock:
            ends = self._ends
            if ends is not None and self._process == here():
                # Full: the thread is woken anyway. Closed in a signal handler: no thread waits.
                with suppress(BlockingIOError, ValueError):
                    os.writev(ends[1].fileno(), (why,))

    def read(self) -> bytes:
        """Return the bytes written since the last read."""
        with self._lock:
            ends = self._ends
            if ends is not None and self._process == here():
                read_bytes = bytearray(4096)
                with suppress(BlockingIOError, ValueError):
                    return bytes(read_bytes[: os.readv(ends[0].fileno(), (read_bytes,))])
        return b""

    def close(self) -> None:
        """Close the pipe; the next wait opens a new one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        ends, self._ends = self._ends, None
        _close(ends or ())


def _close(ends: Sequence[FileIO]) -> None:
    for end in ends:
        with suppress(OSError):
            end.close()
