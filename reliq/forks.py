"""Forks: the identity of this process, and the work of the package around a fork.

This file alone registers fork hooks with Python. Every other part that has threads, locks or
identities registers its steps here. They run in this order for the whole package:

1. Before the fork, threads **stop**. No lock is held yet, since such a thread may need any.
2. Then the locks are **held** that threads of the application may hold too.
3. The parent **releases** the locks, and then **starts** its threads.
4. The child has none of the threads. It **forgets** identities, sockets and leases, which are
   its parent's, and makes its locks anew (:class:`OwnLock`).

After a fork without hooks (uWSGI's default, any fork in C), the child finds a mark that no child
inherits, or another pid, at its first use: :func:`here` then does the fourth step.
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
    """What one part of the package does at a fork; each must return, whatever it meets.

    ``forget`` runs in the child, alone or before anything else of the part is used there.
    It must use no broker, and no other part that forgets: there is no order among them.
    """

    name: str
    stop: Callable[[], None] = _nothing
    hold: Callable[[], None] = _nothing
    release: Callable[[], None] = _nothing
    start: Callable[[], None] = _nothing
    forget: Callable[[], None] = _nothing


Lock: TypeAlias = "threading.Lock | threading.RLock"


class OwnLock:
    """An attribute that is a lock of this process; a forked child gets a new one, not held.

    Reading it checks for a fork first (:func:`here`), so the lock guards this process's state.
    """

    def __init__(self, reentrant: bool = False) -> None:
        self._reentrant = reentrant

    def __set_name__(self, owner: type, name: str) -> None:
        """Learn the name, under which each instance keeps its lock."""
        self._name = f"{name} of its process"

    def __get__(self, instance: Any, owner: type | None = None) -> Lock:
        """Return the instance's lock; it is made when it is looked at first."""
        now = PROCESS[0] or here()
        # Not in __dict__: CPython reads each attribute of the instance slower once that is a dict.
        found: tuple[int, Lock] | None = getattr(instance, self._name, None)
        return self._made(instance, now) if found is None or found[0] != now else found[1]

    def _made(self, instance: Any, now: int) -> Lock:
        with _changing():
            found: tuple[int, Lock] | None = getattr(instance, self._name, None)
            if found is None or found[0] != now:
                # Looked up late: gevent may have put its own in their place.
                made = threading.RLock() if self._reentrant else threading.Lock()
                found = now, made
                setattr(instance, self._name, found)
            return found[1]


class _Pid:
    """In place of a page that a fork empties, where there is none: 0 in any other process."""

    def __init__(self) -> None:
        self._pid = 0
        self._process = 0

    def __getitem__(self, place: int) -> int:
        return self._process if getpid() == self._pid else 0

    def __setitem__(self, place: int, value: int) -> None:
        self._pid, self._process = getpid(), value


def _made_mark() -> memoryview | _Pid:
    """Make the mark that has a number at [0] in this process, and 0 in a child of it.

    It is looked at several times for each publish. A page that the kernel empties in a child
    costs a tenth of the system call that tells the pid, and no pid is used twice there.
    """
    mark: memoryview | _Pid = _Pid()
    if sys.platform == "linux":
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            page.madvise(_MADV_WIPEONFORK)
            mark = memoryview(page).cast("Q")
        except OSError:  # older than Linux 4.14, or something in its place
            page.close()
    mark[0] = 1
    return mark


_MADV_WIPEONFORK = 18
PROCESS = _made_mark()
"""At [0] is the number that :func:`here` returns; 0 in a child that has not noticed yet.

To compare it costs no call: for code that runs for each message.
"""
_parts: list[Part] = []
_generation = 1
_forgetting = False
# By pid: one that another thread of the parent held is not found by the child.
_locks: dict[int, Lock] = {}


def _changing() -> Lock:
    """Return the lock of this process under which it changes what a fork has left."""
    return _locks.setdefault(getpid(), threading.RLock())


def register(part: Part) -> None:
    """Do at every fork from now on what *part* says."""
    _parts.append(part)


def here() -> int:
    """Return which process this is: a number that no process has which it was forked from.

    In a child whose fork ran no hooks the first call forgets what is the parent's.
    """
    if not PROCESS[0]:
        _become_child()
    return _generation


def _become_child(certainly: bool = False) -> None:
    global _generation, _forgetting  # noqa: PLW0603 - a process is one
    with _changing():
        # Once, whoever comes first: a hook of somebody else's may have used us before ours
        # has run. What forgets may come by here; another thread waits.
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
    """The forks that this process is making: more than one where threads make them."""

    _counting = OwnLock()
    _one_at_a_time = OwnLock()

    def __init__(self) -> None:
        self.under_way = 0
        self._held: Lock | None = None

    def before(self) -> None:
        with self._counting:
            self.under_way += 1
        for part in _parts:
            part.stop()
        # Not earlier: one of the threads that were stopped may have been forking itself.
        lock = self._one_at_a_time
        lock.acquire()
        self._held = lock
        for part in _parts:
            part.hold()

    def after_in_parent(self) -> None:
        for part in reversed(_parts):
            part.release()
        held, self._held = self._held, None
        if held is not None:
            held.release()
        with self._counting:
            self.under_way = max(self.under_way - 1, 0)
            last = not self.under_way
        if last:
            for part in reversed(_parts):
                part.start()

    def after_in_child(self) -> None:
        # None where a hook of somebody else's has used us already.
        _become_child(certainly=self._held is not None)

    def forget(self) -> None:
        self.under_way, self._held = 0, None


_fork = _Fork()
register(Part("forks", forget=_fork.forget))
os.register_at_fork(
    before=_fork.before,
    after_in_parent=_fork.after_in_parent,
    after_in_child=_fork.after_in_child,
)


def under_way() -> bool:
    """Whether this process is about to fork: no thread is to be started."""
    return _fork.under_way > 0


def renew() -> None:
    """Begin anew as a process of its own, as a forked child does.

    For copies of a process image (a snapshot): nothing tells such a copy that it is one, not even
    its pid. To be called before the copy publishes or consumes; no other thread may use the
    package meanwhile.
    """
    _fork.before()
    _become_child(certainly=True)
