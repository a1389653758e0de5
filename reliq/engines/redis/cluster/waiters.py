"""Waiters: threads that wait until something has changed."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from ....forks import OwnLock


class Waiter:
    """A thread that waits until something has changed."""

    lock = OwnLock()
    """Held until it is woken: a lock, as an interrupted wait for it harms nothing."""

    def __init__(self) -> None:
        self.lock.acquire()


class Waiters:
    """All that wait."""

    def __init__(self) -> None:
        self._waiters: deque[Waiter] = deque()

    def add(self) -> Waiter:
        """Return one whose lock can be had after the next :meth:`wake`."""
        waiter = Waiter()
        self._waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Wake all of them; once more, where that was interrupted."""
        while self._waiters:
            with suppress(RuntimeError):  # woken before
                self._waiters[0].lock.release()
            with suppress(IndexError):  # by a signal's handler, meanwhile
                self._waiters.popleft()
