"""Parked slots: what waits until a node serves its slot again.

A slot that moves to another node, or whose node is lost, is served by nobody for a while. What is
asked of it waits here in order, and the first command tries again and again whether it is served;
when that passes, the others follow. A thread does it, which lives as long as something waits:
neither an event loop nor who asks another node is held up by one that does not answer.
"""

from __future__ import annotations

import logging
import random
import threading
from bisect import insort
from contextlib import suppress
from math import inf
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from ....errors import BrokerTimeout, BrokerUnavailable, ReliqError
from ....forks import OwnLock
from . import advice
from .request import key_of
from .waiters import Waiters

if TYPE_CHECKING:
    from ..wire import Wire
    from .request import Request

logger = logging.getLogger("reliq")

_SHORTEST_S, _LONGEST_S = 0.005, 0.1
# A slot that is on its way for longer may have been left so.
_LONG_S = 0.5
# So long the thread waits for one connection, while other slots may be due.
_READS_S = 0.02
_NUMBER = attrgetter("number")


class Sender(Protocol):
    """Who sends what was parked: the wire of the cluster."""

    def send_again(self, request: Request) -> None:
        """Send it to the node that has its slot now; raises BrokerUnavailable. Does not wait."""

    def look_for_nodes(self) -> None:
        """Find out which node has which slot; waits. Raises nothing."""

    def read_reply(self, request: Request, timeout_s: float) -> None:
        """Wait for the reply to what was sent; at most so long."""

    def fail(self, request: Request, error: ReliqError) -> None:
        """Let *error* be what has become of it."""

    def judge(self, slot: int) -> tuple[str, bool]:
        """Return what to do about a slot for which nothing can be sent, and whether it is lost.

        Lost: no node has it, or one that cannot be reached, and that nobody will replace.
        """


class _Slot:
    """One slot that is not served, as far as is known."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.why = ""
        self.advice = ""
        """What to do about that."""
        self.lost = False
        """Whether it stays so until somebody does it."""
        self.way = ""
        """From which node to which it is on its way, where that is known."""
        self.pause_s = _SHORTEST_S
        self.due = 0.0
        self.trying: Request | None = None
        """The one that was sent to see whether the slot is served."""
        self.served = False
        """Whether it is: then the others are sent, without waiting for each other."""

    @property
    def told(self) -> str:
        """Why it is not served, and what to do about that, for an error."""
        why = f"{self.why}; {self.way}" if self.way else self.why
        why = why.removesuffix(".")
        return f"{why}. What to do: {self.advice}" if self.advice else why


class Parked:
    """What waits, by slot."""

    _lock = OwnLock()
    """Guards its state. Nothing is sent or called under it."""

    def __init__(self, sender: Sender, timeout_s: float, broker: str) -> None:
        self._sender = sender
        self._timeout_s = timeout_s
        self.lost_s = inf
        """So long something waits for a slot that is lost; never longer than for others."""
        self._broker = broker
        self._slots: dict[int, _Slot] = {}
        self._doubted = False
        self._closed: ReliqError | None = None
        self._thread: threading.Thread | None = None
        self._work = threading.Event()
        self._waiters = Waiters()

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._slots)

    def holds(self, slot: int) -> bool:
        """Whether something waits for *slot*."""
        return slot in self._slots

    def waiting(self) -> list[Request]:
        """Return what waits, in no order."""
        with self._lock:
            found = [item for slot in self._slots.values() for item in slot.requests]
            tried = [slot.trying for slot in self._slots.values() if slot.trying is not None]
            return found + tried

    # -- what comes in

    def take(self, request: Request) -> bool:
        """Put *request* behind the others of its slot; False where the slot is served."""
        if not self._slots:  # the hot path
            return False
        with self._lock:
            slot = self._slots.get(request.slot)
            if slot is None:
                return False
            self._enter(slot, request)
            self._start()
            return True

    def park(
        self,
        request: Request,
        why: str,
        *,
        at_once: bool = False,
        advised: str = "",
        lost: bool = False,
    ) -> None:
        """Have *request* wait, because its slot was not served: *why*.

        at_once: it is served, for all that is known: by another node, or over a connection
            that is not open yet.
        advised: what an operator does about it.
        lost: it stays so until he does.

        What was given up meanwhile is dropped; the others of its slot go on.
        """
        with self._lock:
            error = self._closed
            request.sent = None
            if error is None:
                slot = self._slots.setdefault(request.slot, _Slot())
                slot.why, slot.advice, slot.lost = why, advised, lost
                slot.served = False
                if slot.trying is request:
                    slot.trying = None
                    slot.pause_s = min(slot.pause_s * 2, _LONGEST_S)
                if not request.given_up:
                    self._enter(slot, request)
                pause_s = 0.0 if at_once else slot.pause_s * random.uniform(0.7, 1.3)  # noqa: S311
                slot.due = monotonic() + pause_s
                self._start()
        if error is not None:
            self._sender.fail(request, error)

    @staticmethod
    def _enter(slot: _Slot, request: Request) -> None:
        if request.parked_at is None:
            request.parked_at = monotonic()
        insort(slot.requests, request, key=_NUMBER)

    def replied(self, request: Request, *, served: bool) -> None:
        """Note the reply to what was parked before. *served*: the node has carried it out."""
        with self._lock:
            slot = self._slots.get(request.slot)
            if slot is not None and slot.trying is request:
                slot.trying = None
                slot.served = served
                slot.pause_s = _SHORTEST_S
                slot.due = 0.0 if served else monotonic() + slot.pause_s
            self._waiters.wake()
            self._work.set()

    def note_way(self, number: int, way: str) -> None:
        """Note from which node to which a slot is on its way: an error names both."""
        with self._lock:
            slot = self._slots.get(number)
            if slot is not None:
                slot.way = way

    def lacks_way(self, request: Request) -> bool:
        """Whether *request* has waited for longer than slots take, and nobody knows why."""
        since = request.parked_at
        if since is None or monotonic() - since < _LONG_S:
            return False
        with self._lock:
            slot = self._slots.get(request.slot)
            return slot is not None and not slot.way

    def withdraw(self, request: Request) -> bool:
        """Have *request* not sent any more; False where it is on its way, or finished."""
        with self._lock:
            slot = self._slots.get(request.slot)
            if slot is not None and request in slot.requests:
                slot.requests.remove(request)
                return True
        return False

    def doubt(self) -> None:
        """Have the nodes looked for: one is lost, or silent."""
        with self._lock:
            if self._closed is None and not self._doubted:
                self._doubted = True
                self._start()

    def revive(self) -> None:
        """Have the thread, if something waits and there is none: it could not be started."""
        with self._lock:
            if self._slots:
                self._start()

    def try_now(self) -> None:
        """Try all slots: a connection was opened, or could not be."""
        with self._lock:
            for slot in self._slots.values():
                slot.due = 0.0
            if self._slots:
                self._start()

    def wait(self, request: Request, timeout_s: float) -> None:
        """Wait until *request* is sent again, or finished; at most *timeout_s*."""
        with self._lock:
            if request.finished or request.sent is not None:
                return
            self._start()
            waiter = self._waiters.add()
        waiter.lock.acquire(timeout=timeout_s)

    def close(self, error: ReliqError) -> None:
        """Let *error* be what has become of all that waits, and of what comes."""
        with self._lock:
            self._closed = error
            slots, self._slots = self._slots, {}
            self._work.set()
        for slot in slots.values():
            for request in slot.requests:
                self._sender.fail(request, error)

    # -- the thread

    def _start(self) -> None:
        """Have a thread, under the lock. An interrupt may have left one that never began."""
        self._work.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="reliq-slots", daemon=True)
            with suppress(RuntimeError):  # none can be had now: whoever waits tries again
                self._thread.start()

    def _run(self) -> None:
        while (pause_s := self._turn()) is not None:
            self._work.wait(pause_s)
            self._work.clear()

    def _turn(self) -> float | None:
        """Do what is due; return how long there is nothing to do, None where nothing waits."""
        with self._lock:
            if self._thread is not threading.current_thread():
                return None  # there is another one
            if not (self._slots or self._doubted):
                self._thread = None
                return None
            doubted, self._doubted = self._doubted, False
        try:
            if doubted:
                self._sender.look_for_nodes()
            self._fail_what_is_late()
            for number in self._due():
                self._send(number)
            self._read()
        except Exception:  # what was posted has raised, or it is a mistake of ours: it goes on
            logger.exception("%s: what waited for a slot failed", self._broker)
            return _LONGEST_S  # it may go on failing
        with self._lock:
            dues = [slot.due for slot in self._slots.values() if slot.trying is None]
            if len(dues) < len(self._slots):
                return 0.0  # one is being tried
        return max(min(dues) - monotonic(), 0.0) if dues else 0.0

    def _due(self) -> list[int]:
        now = monotonic()
        with self._lock:
            return [
                number
                for number, slot in self._slots.items()
                if slot.trying is None and slot.due <= now
            ]

    def _send(self, number: int) -> None:
        """Try whether a slot is served; where it is, send what waits for it."""
        while True:
            with self._lock:
                slot = self._slots.get(number)
                if slot is None:
                    return
                if not slot.requests:
                    if slot.trying is None:
                        del self._slots[number]
                    return
                request = slot.requests.pop(0)
                served = slot.served
                if not served:
                    slot.trying = request
            try:
                self._sender.send_again(request)
            except Exception as exc:  # also where no thread can be had
                if self._not_sent(request, exc):
                    return
                raise
            with self._lock:
                self._waiters.wake()
            if not served:
                return

    def _not_sent(self, request: Request, exc: Exception) -> bool:
        """Do what is to be done with a request that was not sent; False where *exc* is a mistake.

        Where it was sent, and a handler of others has raised, its reply is on its way.
        """
        if request.sent is not None:
            return False
        if isinstance(exc, BrokerUnavailable):
            advised, lost = self._sender.judge(request.slot)
            self.park(request, str(exc), advised=advised, lost=lost)
            self.doubt()
        elif isinstance(exc, ReliqError):  # refused before it was sent: it had better be told
            self._sender.fail(request, exc)
        else:
            self.park(request, repr(exc))
        return isinstance(exc, ReliqError)

    def _read(self) -> None:
        by_wire: dict[Wire, Request] = {}
        with self._lock:
            for slot in self._slots.values():
                sent = None if slot.trying is None else slot.trying.sent
                if slot.trying is not None and sent is not None:
                    by_wire[sent[0]] = slot.trying  # once each: it may be silent
        for request in by_wire.values():
            self._sender.read_reply(request, _READS_S)

    def _fail_what_is_late(self) -> None:
        now = monotonic()
        with self._lock:
            late = [
                (request, slot)
                for slot in self._slots.values()
                for request in slot.requests
                if self._is_late(request, slot, now)
            ]
            # A thread that has ended may have left these behind.
            tried = [
                (slot.trying, slot)
                for slot in self._slots.values()
                if slot.trying is not None and self._is_late(slot.trying, slot, now)
            ]
        for request, slot in tried:
            if request.sent is None:
                self._sender.fail(request, self.late(request, slot))
        for request, slot in late:
            if self.withdraw(request):
                self._sender.fail(request, self.late(request, slot))

    def _is_late(self, request: Request, slot: _Slot, now: float) -> bool:
        since = request.parked_at
        return since is not None and now - since > self._waits_s(slot)

    def _waits_s(self, slot: _Slot | None) -> float:
        lost = slot is not None and slot.lost
        return min(self.lost_s, self._timeout_s) if lost else self._timeout_s

    def reason(self, number: int) -> str:
        """Return why a slot is not served, and what to do about that, as far as is known."""
        slot = self._slots.get(number)
        return "no reason is known" if slot is None else slot.told

    def late(self, request: Request, slot: _Slot | None = None) -> BrokerTimeout:
        """Return what became of a request that has waited for too long."""
        slot = slot or self._slots.get(request.slot)
        why = "no reason is known" if slot is None else slot.told
        key = key_of(request.command)
        name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key or "none"
        waited_s = self._waits_s(slot)
        in_time = f"in time (socket_timeout {self._timeout_s:g} s)"
        return BrokerTimeout(
            f"{self._broker}: slot {request.slot} was not served "
            f"{in_time if waited_s >= self._timeout_s else f'within {waited_s:g} s'}: {why}. It "
            f"was asked for {advice.named(name)}; nothing was changed"
        )
