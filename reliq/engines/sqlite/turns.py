"""Turns: the threads of a process write to a file one after the other.

SQLite has no queue for its lock: whoever finds the file locked sleeps and tries again. Of
sixteen threads fifteen would mostly sleep while nobody writes. So they wait for each other
here, where the next one is woken at once, and only processes meet at SQLite's lock. Which
of them writes is still decided there: a turn is a courtesy, and one that is not given back
in time is passed over.
"""

from __future__ import annotations

import weakref
from typing import ClassVar

from ...forks import Lock, OwnLock


class Turns:
    """Whose turn it is to write to one file, among the threads of this process."""

    _lock = OwnLock()
    _known: ClassVar[weakref.WeakValueDictionary[str, Turns]] = weakref.WeakValueDictionary()

    @classmethod
    def at(cls, path: str) -> Turns:
        """Return those of the file at *path*."""
        return cls._known.setdefault(path, cls())

    def take(self, timeout_s: float) -> Lock | None:
        """Wait for a turn; return what is to be released after it, None where it took too long."""
        lock = self._lock
        return lock if lock.acquire(timeout=timeout_s) else None
