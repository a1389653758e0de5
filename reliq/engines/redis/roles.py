"""Roles: what one thread at a time does for all that use a connection.

It reads, it writes what the socket did not take at once, it calls handlers, it dials; whoever needs
one of these first does it, and the others wait until they are woken. A lock of who owns the roles
guards all of it; it is not held while a role is played.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from ...forks import OwnLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from .stream import Stream


class Turn:
    """A thread's turn at one or more roles."""

    __slots__ = ("roles", "stream", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()  # looked up late: gevent counts greenlets
        self.roles: list[Role] = []
        self.stream: Stream | None = None
        """Whose descriptor it waits for."""


class Role:
    """One of them, and who has it."""

    def __init__(self) -> None:
        self._turn: Turn | None = None

    def take(self, turn: Turn) -> bool:
        """Have it, unless another thread has; in a reply's handler, or a signal's, its own may."""
        if self._turn is None:
            turn.roles.append(self)
            self._turn = turn
        return self._turn.thread == turn.thread

    def end(self, turn: Turn) -> None:
        """Have it no more; harmless where *turn* did not."""
        if self._turn is turn:
            self._turn = None
            turn.roles.remove(self)

    def is_anothers(self) -> bool:
        """Whether another thread has it."""
        return self._turn is not None and self._turn.thread != threading.get_ident()


def in_turn(do: Callable[[Turn], None], end: Callable[[Turn], None]) -> None:
    """Do what takes turns, and *end* the turn, whatever interrupts that.

    *end* is called twice: once more where it was interrupted itself. So what it does last, to take
    the roles from the turn, tells whether all of it is done.
    """
    turn = Turn()
    try:
        try:
            do(turn)
        finally:
            end(turn)
    finally:
        end(turn)


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
