"""Loops: a daemon thread that takes turns, with pauses in between.

A thread that exists at a fork may hold a lock that the child needs. A loop has therefore no thread
while the process forks. Another thread continues its turns afterwards.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

from .forks import OwnLock, Part, register, under_way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Turns: TypeAlias = "Callable[[Run], Iterator[float]]"
    """Each step of the iterator is a turn, and yields the seconds until the next one. The step
    after the run is over ends the iterator."""


class Loop:
    """The background thread of one owner. Thread-safe."""

    _lock = OwnLock()
    """Guards the thread and its end. A nested start finds the thread that is being started."""

    def __init__(self, name: str, turns: Turns, after_fork: Callable[[], bool] = bool) -> None:
        """Start without a thread, which will have *name*.

        *after_fork* returns whether the owner calls :meth:`resume` later after a fork.
        """
        self._name, self._turns, self.resumed_later = name, turns, after_fork
        self.run: Run | None = None
        """The current turns."""

    @property
    def threaded(self) -> bool:
        """Whether the thread runs, or will after the fork in progress."""
        return self.run is not None

    def start(self) -> None:
        """Start the thread unless it runs; during a fork, start it afterwards."""
        with self._lock:
            run = self.run or Run(self._name, self._turns)
            if self.threaded:  # perhaps since a signal handler in between
                return
            self.run = run
            _started.add(self)
            try:
                run.pause() if under_way() else run.begin()
            except BaseException:  # an interrupt, perhaps after the start
                run.end()
                self.run = None
                raise

    def stop(self) -> None:
        """Stop the thread and wait for its end. The thread itself may call this, and ends later."""
        with self._lock:
            run, self.run = self.run, None
        if run is not None:
            run.end()
            run.join()

    def resume(self) -> None:
        """Start a thread again after a fork, which takes a due turn at once."""
        with self._lock:
            if self.run is not None and self.run.paused:
                self.run.begin()

    def cut(self) -> None:
        """Let the thread take its next turn now."""
        if (run := self.run) is not None:
            run.cut()


class Run:
    """The turns from one start of a loop to its stop, taken by one thread after another."""

    def __init__(self, name: str, turns: Turns) -> None:
        self._name = name
        self._turns = turns(self)
        self._thread: threading.Thread | None = None
        self._event = threading.Event()
        self._setting: set[int] = set()
        self._next_turn = 0.0
        self.over = False
        """Whether the turns must end."""
        self.paused = False
        """Whether the thread ends, or has ended, for a fork."""

    @property
    def interrupted(self) -> bool:
        """Whether the thread must end, finally or for a fork."""
        return self.over or self.paused

    def begin(self) -> None:
        """Start a thread. If a thread of this run has forked itself, that one continues."""
        self.paused = False
        if self._thread is not threading.current_thread():
            self._event = threading.Event()
            self._thread = threading.Thread(target=self._take, name=self._name, daemon=True)
            self._thread.start()

    def _take(self) -> None:
        while self._is_due() or self.over:
            pause_s = next(self._turns, None)
            if pause_s is None:
                return
            self._next_turn = monotonic() + pause_s
            if self.paused and not self.over:
                return

    def _is_due(self) -> bool:
        """Wait for the next turn; return False when the thread must end.

        A due turn precedes a fork. Otherwise, forks in quick succession would prevent all turns.
        """
        left_s = self._next_turn - monotonic()
        if left_s <= 0:
            return True
        self._event.wait(left_s)
        self._event.clear()
        return not self.interrupted

    def cut(self) -> None:
        """End the pause. An event is not reentrant: a nested call leaves it set."""
        me = threading.get_ident()
        if me not in self._setting:
            self._setting.add(me)
            try:
                self._event.set()
            finally:
                self._setting.discard(me)

    def pause(self) -> None:
        """End the thread for a fork."""
        self.paused = True
        self.cut()

    def end(self) -> None:
        """End the thread and the turns."""
        self.over, self.paused = True, False
        self.cut()

    def join(self) -> None:
        """Wait for the end of the thread, and end the turns if no thread will."""
        if self._thread is threading.current_thread():
            return
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        if self.over:
            for _ in self._turns:
                pass


_started: WeakSet[Loop] = WeakSet()


def _pause_all() -> None:
    """End all threads before a fork."""
    runs = [loop.run for loop in list(_started) if loop.run is not None]
    for run in runs:
        run.pause()
    for run in runs:
        run.join()


def _resume_all() -> None:
    for loop in list(_started):
        if not loop.resumed_later():
            loop.resume()


register(Part("loops", stop=_pause_all, start=_resume_all, forget=_started.clear))
