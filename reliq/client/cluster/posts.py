"""Posts over a cluster: written to the node of their slot, or resent while no node serves it.

The threads that read replies resend such deferred posts, and give them up after ``socket_timeout``.
A timer resends them if no thread reads replies. docs/decisions.md gives the reason to keep them.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import BrokerTimeout, BrokerUnavailable, ReliqError
from ...forks import OwnLock
from ..pipeline import Post
from ..stream import pack
from .requests import next_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..stream import Reply
    from ..wire import Wire
    from .nodes import Nodes
    from .requests import Request, Unserved

SHORTEST_S, LONGEST_S = 0.005, 0.1
# How often a thread that waits for replies checks the deferred posts, and the other nodes.
_POLL_AGAIN_S = 0.005
_READS_S, _POLL_EVERY_S = 0.02, 1.0


def lengthen(request: Request) -> float:
    """Return the pause before *request* is resent; it doubles each time."""
    request.pause_s = min(max(request.pause_s * 2, SHORTEST_S), LONGEST_S)
    return request.pause_s * random.uniform(0.7, 1.3)  # noqa: S311 - no secret


class ClusterPosts:
    """The posts of one client in one process; keeps the deferred ones by slot."""

    _lock = OwnLock()
    """Guards the deferred posts. Nothing is sent or called while a thread holds the lock.
    Iterations use copies, which a nested post does not change."""

    def __init__(self, nodes: Nodes, unserved: Unserved) -> None:
        self._slots = unserved.address.slots
        self._nodes = nodes
        self._unserved = unserved
        self._put_off: dict[int, list[Request]] = {}
        self._timed = False

    # -- sending

    def post(self, request: Request) -> None:
        """Write the command now, or when its slot is served. Never blocks."""
        if self.holds(request.slot):
            self._again(request, 0.0)  # after the other deferred ones
            self.pump()
        else:
            self._send(request)

    def _send(self, request: Request) -> None:
        place = self._slots.place_of(request.slot)
        wire = self._nodes.open(place)
        if wire is not None:
            handler = partial(self._replied, request, wire)
            post = Post(request.command, request.script, request.patience_s, handler)
            try:
                if wire.posts.post(pack(request.command), post):
                    return
                why = "there is no connection to its node yet"
            except BrokerUnavailable as exc:
                if post.number:  # it will get its reply: a handler of another post raised
                    raise
                why = str(exc)
        else:
            failure = "" if place is None else self._nodes.failure(place)
            why = failure or f"{place} is being connected to"
        self._unserved.not_sent(request, why)
        self._again(request, lengthen(request))
        if place is not None:
            try:
                self._nodes.connect_soon(place)
            except BrokerUnavailable as exc:
                request.why = str(exc)

    def _replied(self, request: Request, wire: Wire, reply: Reply) -> None:
        if isinstance(reply, ReliqError):
            if self._unserved.redirected(request, wire, reply):
                self._again(request, 0.0 if request.at_once else lengthen(request))
                return
            if isinstance(reply, BrokerTimeout) and not reply.reply:
                self._nodes.silent(wire)
        self._forget(request)
        request.finish(reply)

    # -- reading

    def receive(self) -> None:
        """Read the available replies without waiting, and call their handlers."""
        for _, wire in self._nodes.all():
            try:
                wire.receive()
            except BrokerUnavailable:  # noqa: PERF203 - one of few
                self._unserved.doubt()
        self.pump()

    def wait(self, ends_at: float, check: Callable[[], None]) -> None:
        """Wait until each earlier post has its reply, or until *ends_at*.

        *check* is called regularly, to detect late nodes.
        """
        later = next_number()
        posts = [(wire.posts, wire.pipeline.number) for _, wire in self._nodes.all()]
        while True:
            self.pump()
            posts = [(known, number) for known, number in posts if not known.are_over(number)]
            put_off = self._before(later)
            if not (posts or put_off) or monotonic() >= ends_at:
                return
            if put_off:
                self.receive()
            for known, number in posts:
                with suppress(BrokerUnavailable):  # the handlers were called with the error
                    known.wait(_READS_S if len(posts) > 1 or put_off else _POLL_EVERY_S, number)
            if not posts:
                time.sleep(_POLL_AGAIN_S)
            check()

    # -- deferred posts

    def __bool__(self) -> bool:
        """Whether a deferred post has no reply yet."""
        return bool(self._put_off)

    def holds(self, slot: int) -> bool:
        """Whether a post for *slot* is deferred."""
        return slot in self._put_off

    def _before(self, number: int) -> bool:
        if not self._put_off:
            return False
        with self._lock:
            return any(request.number < number for request in self._all())

    def _all(self) -> list[Request]:
        return [item for requests in self._put_off.copy().values() for item in requests.copy()]

    def _again(self, request: Request, pause_s: float) -> None:
        """Resend *request* after *pause_s*, even if no thread reads replies at that time."""
        with self._lock:
            requests: list[Request] = []
            while self._put_off.get(request.slot) is not requests:  # a nested call may remove it
                requests = self._put_off.setdefault(request.slot, [])
                if request not in requests:
                    requests.append(request)
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
                # a post that was sent needs a thread that reads its reply, but no timer
                self._timed = any(request.due is not None for request in self._all())
            if self._timed:
                self._start_timer()

    def _forget(self, request: Request) -> None:
        """Record that *request* has its reply; harmless if it was never deferred."""
        if not self._put_off:
            return
        with self._lock:
            requests = self._put_off.get(request.slot, [])
            if request in requests:
                requests.remove(request)
                if not requests:
                    self._put_off.pop(request.slot, None)

    def hurry(self) -> None:
        """Resend all deferred posts now, after a new connection or a new slot map."""
        with self._lock:
            for request in self._all():
                if request.due is not None:
                    request.due = 0.0
        self.pump()

    def pump(self) -> None:
        """Resend the due posts; give up those that have waited too long."""
        if not self._put_off:
            return
        now = monotonic()
        with self._lock:
            due = []
            for request in self._all():
                if request.due is not None and request.due <= now:
                    request.due = None
                    due.append(request)
        try:
            while due:
                error = self._unserved.lateness(due[0])
                if error is None:
                    self._send(due[0])
                else:
                    self._forget(due[0])
                    due[0].finish(error)
                due.pop(0)
        finally:
            for request in due:  # after an interruption
                if not request.finished:
                    request.due = now

    def end(self, error: ReliqError) -> None:
        """Remove all deferred posts, with *error* as their reply."""
        with self._lock:
            put_off, self._put_off = self._put_off, {}
        for requests in put_off.values():
            for request in requests:
                request.finish(error)
