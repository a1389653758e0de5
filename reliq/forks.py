"""Forks: the identity of this process, and the steps of the package at a fork.

Only this file registers fork hooks with Python. Every part with threads, locks or identities
registers its steps here. They run in this order for the whole package:

1. Before the fork, threads **stop**. No lock is held yet, because such a thread may need any lock.
2. Locks that threads of the application may hold are **held**.
3. The parent **releases** the locks, and then **starts** its threads.
4. The child has no threads. It **forgets** identities, sockets and leases, which belong to the
   parent, and creates new locks (:class:`OwnLock`).

After a fork without hooks (uWSGI's default, any fork in C), the child notices at its first use that
a mark is missing, or that its pid differs. :func:`here` then runs the fourth step.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from os import getpid
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable


def _nothing() -> None:
    """Do nothing."""


class Part(NamedTuple):
    """The steps of one part of the package at a fork. Each step must return in every state.

    ``forget`` runs in the child before any other use of the part. It must not use a broker, nor
    another part with ``forget``, because these have no order.
    """

    name: str
    stop: Callable[[], None] = _nothing
    hold: Callable[[], None] = _nothing
    release: Callable[[], None] = _nothing
    start: Callable[[], None] = _nothing
    forget: Callable[[], None] = _nothing


Lock: TypeAlias = "threading.RLock"


class OwnLock:
    """An attribute with a lock of this process. A forked child gets a new, free lock.

    It is reentrant: a signal handler or a destructor of the application may publish or ack inside
    a critical section of its own thread. Each section must therefore be right if, between any two
    of its calls, another call runs completely. docs/design.md states how for each lock.

    Each read first checks for a fork (:func:`here`), so the lock guards the state of this process.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        """Set the name of the attribute in which each instance keeps its lock."""
        self._name = f"{name} of its process"

    def __get__(self, instance: Any, owner: type | None = None) -> Lock:
        """Return the instance's lock, created at first use."""
        now = PROCESS[0] or here()
        # Not in __dict__: with a real dict, CPython reads all attributes of the instance slower.
        kept: tuple[int, Lock] | None = getattr(instance, self._name, None)
        return self._made(instance, now) if kept is None or kept[0] != now else kept[1]

    def _made(self, instance: Any, now: int) -> Lock:
        with _changing():
            kept: tuple[int, Lock] | None = getattr(instance, self._name, None)
            if kept is None or kept[0] != now:
                # Look up the classes now: gevent may have replaced them.
                kept = now, threading.RLock()
                setattr(instance, self._name, kept)
            return kept[1]


class _Pid:
    """A mark for systems without pages that a fork wipes: 0 in any other process."""

    def __init__(self) -> None:
        self._pid = 0
        self._process = 0

    def __getitem__(self, place: int) -> int:
        return self._process if getpid() == self._pid else 0

    def __setitem__(self, place: int, value: int) -> None:
        self._pid, self._process = getpid(), value


def _made_mark() -> memoryview | _Pid:
    """Return a mark with a number at [0] in this process, and 0 in its children.

    Each publish reads it several times. A page that the kernel wipes in a child costs a tenth of
    the system call for the pid, and is not fooled by a reused pid.
    """
    mark: memoryview | _Pid = _Pid()
    if sys.platform == "linux":
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            page.madvise(_MADV_WIPEONFORK)
            mark = memoryview(page).cast("Q")
        except OSError:  # older than Linux 4.14, or an emulation
            page.close()
    mark[0] = 1
    return mark


_MADV_WIPEONFORK = 18
PROCESS = _made_mark()
"""At [0], the number that :func:`here` returns; 0 in a child that has not noticed the fork yet.

For code that runs for each message: comparing it needs no call.
"""
_parts: list[Part] = []
_generation = 1
_forgetting = False
# By pid, so that a child does not find a lock that a thread of its parent held.
_locks: dict[int, Lock] = {}


def _changing() -> Lock:
    """Return the lock of this process for changing inherited state."""
    return _locks.setdefault(getpid(), threading.RLock())


def register(part: Part) -> None:
    """Run the steps of *part* at every later fork."""
    _parts.append(part)


def here() -> int:
    """Return the number of this process, which differs from those of its ancestors.

    In a child whose fork ran no hooks, the first call discards the inherited state.
    """
    if not PROCESS[0]:
        _become_child()
    return _generation


def _become_child(certainly: bool = False) -> None:
    global _generation, _forgetting  # noqa: PLW0603 - a process is one
    with _changing():
        # Only once: a foreign fork hook may have used the package before our hook. A `forget` step
        # may call this function again; other threads wait.
        if _forgetting or (PROCESS[0] and not certainly):
            return
        _forgetting = True
        try:
            PROCESS[0] = 0
            _generation += 1
            for part in _parts:
                part.forget()
        finally:
            _forgetting = False
            PROCESS[0] = _generation
            for pid in list(_locks):
                if pid != getpid():
                    del _locks[pid]


class _Fork:
    """The forks in progress in this process; threads may fork concurrently."""

    _counting = OwnLock()
    _one_at_a_time = OwnLock()

    def __init__(self) -> None:
        self.under_way = 0
        # More than one, if a signal handler forks within a fork.
        self._held: list[Lock] = []

    def before(self) -> None:
        with self._counting:
            self.under_way += 1
        for part in _parts:
            part.stop()
        # Not earlier: one of the stopped threads may have been forking itself.
        lock = self._one_at_a_time
        lock.acquire()
        self._held.append(lock)
        for part in _parts:
            part.hold()

    def after_in_parent(self) -> None:
        for part in reversed(_parts):
            part.release()
        if self._held:
            self._held.pop().release()
        with self._counting:
            self.under_way = max(self.under_way - 1, 0)
            last = not self.under_way
        if last:
            for part in reversed(_parts):
                part.start()

    def after_in_child(self) -> None:
        # Without a held lock, a foreign fork hook may already have used the package.
        _become_child(certainly=bool(self._held))

    def forget(self) -> None:
        self.under_way, self._held = 0, []


_fork = _Fork()
register(Part("forks", forget=_fork.forget))
os.register_at_fork(
    before=_fork.before,
    after_in_parent=_fork.after_in_parent,
    after_in_child=_fork.after_in_child,
)


def under_way() -> bool:
    """Whether this process is about to fork, so that no thread may be started."""
    return _fork.under_way > 0


def renew() -> None:
    """Start as a new process, as a forked child does.

    For copies of a process image (snapshots), which cannot detect that they are copies, not even by
    their pid. Call it before the copy publishes or consumes. No other thread may use the package
    meanwhile.
    """
    _fork.before()
    _become_child(certainly=True)
