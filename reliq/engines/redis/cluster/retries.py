"""Retries: posts whose slot is not served now, and that no node has carried out.

A slot that moves, or whose node is lost, is served by no node for a while. The threads that read
replies send such posts again, and give them up after ``socket_timeout``. There is no thread for
it: a post whose reply nobody reads is not known to need it.
"""

from __future__ import annotations

import random
import threading
from time import monotonic
from typing import TYPE_CHECKING

from ....forks import OwnLock

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from .request import Request

SHORTEST_S, LONGEST_S = 0.005, 0.1


def lengthen(request: Request) -> float:
    """Return how long to wait before *request* is sent again: twice as long each time."""
    request.pause_s = min(max(request.pause_s * 2, SHORTEST_S), LONGEST_S)
    return request.pause_s * random.uniform(0.7, 1.3)  # noqa: S311 - no secret


class Retries:
    """The posts that were put off and have no reply yet, by slot."""

    _lock = OwnLock()
    """Guards them. Nothing is sent or called under it."""

    def __init__(
        self, send: Callable[[Request], None], give_up_late: Callable[[Request], bool]
    ) -> None:
        self._send = send
        self._give_up_late = give_up_late
        self._slots: dict[int, list[Request]] = {}
        self._timed = False

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._slots)

    def of(self, slot: int) -> Request | None:
        """Return the oldest of a slot; None where there is none."""
        found = self._slots.get(slot)
        return found[0] if found else None

    def before(self, number: int, but_for: Container[int]) -> bool:
        """Whether one is older than *number*, in other slots than those."""
        if not self._slots:
            return False
        with self._lock:
            return any(
                request.number < number and slot not in but_for
                for slot, found in self._slots.items()
                for request in found
            )

    def add(self, request: Request, pause_s: float) -> None:
        """Send *request* again after so long, also where no thread reads or waits by then."""
        with self._lock:
            found = self._slots.setdefault(request.slot, [])
            if request not in found:
                found.append(request)
            request.due = monotonic() + pause_s
            timed, self._timed = self._timed, True
        if not timed:
            self._start_timer()

    def _start_timer(self) -> None:
        timer = threading.Timer(LONGEST_S, self._on_timer)
        timer.daemon = True
        timer.start()

    def _on_timer(self) -> None:
        try:
            self.pump()
        finally:
            with self._lock:
                # What has been sent needs a thread that reads its reply, and no timer.
                self._timed = any(
                    request.due is not None for found in self._slots.values() for request in found
                )
            if self._timed:
                self._start_timer()

    def remove(self, request: Request) -> None:
        """Note that *request* has its reply; harmless where it was never put off."""
        if not self._slots:
            return
        with self._lock:
            found = self._slots.get(request.slot, [])
            if request in found:
                found.remove(request)
                if not found:
                    del self._slots[request.slot]

    def hurry(self) -> None:
        """Have all sent again now: there is another connection, or another map."""
        with self._lock:
            for found in self._slots.values():
                for request in found:
                    if request.due is not None:
                        request.due = 0.0

    def pump(self) -> None:
        """Send again those that are due; give up those that have waited too long."""
        if not self._slots:
            return
        now = monotonic()
        with self._lock:
            due = [
                request
                for found in self._slots.values()
                for request in found
                if request.due is not None and request.due <= now
            ]
            for request in due:
                request.due = None
        try:
            while due:
                if not self._give_up_late(due[0]):
                    self._send(due[0])
                due.pop(0)
        finally:
            for request in due:  # that was interrupted
                if not request.finished:
                    request.due = now

    def take_all(self) -> list[Request]:
        """Return all of them, and forget them."""
        with self._lock:
            slots, self._slots = self._slots, {}
        return [request for found in slots.values() for request in found]
