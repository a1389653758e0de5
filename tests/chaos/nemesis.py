"""The nemesis: applies the faults of a schedule, and undoes them."""

from __future__ import annotations

import heapq
import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from tests.chaos.faults import FAULTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.kind import FaultKind, Stage
    from tests.chaos.model import Fault, Strike


class Nemesis:
    """Applies due strikes; called repeatedly from one thread."""

    _LONGEST_S = 60.0
    """Longest seconds until a fault can be undone, and again until its effect has ended."""
    _AGAIN_S = 0.05

    def __init__(self, stage: Stage, strikes: Sequence[Strike], began: float) -> None:
        self._stage, self._began = stage, began
        self._due = deque(strikes)
        self._active: list[tuple[float, int, FaultKind, Fault]] = []
        self._undone: list[tuple[float, FaultKind, Fault]] = []
        """Undone faults whose effect has not ended yet, and must end by itself."""
        self._numbers = count()
        self.faults: list[Fault] = []

    @property
    def done(self) -> bool:
        """Whether all strikes are applied and undone."""
        return not (self._due or self._active or self._undone)

    def step(self) -> Fault | None:
        """Undo and apply due faults; return the fault applied now."""
        now = time.monotonic()
        for _, _, act, fault in self._active:
            act.watch(fault)
        while self._active and self._active[0][0] <= now:
            self._undo_if_ready(now)
        self._undone = [entry for entry in self._undone if not self._over(*entry)]
        strike = self._next(now - self._began)
        if strike is None:
            return None
        self._due.remove(strike)
        act = FAULTS[strike.kind](self._stage, strike)
        fault = act.apply()
        self.faults.append(fault)
        if fault.applied and strike.duration_s:
            until = time.monotonic() + strike.duration_s
            heapq.heappush(self._active, (until, next(self._numbers), act, fault))
        return fault

    def _next(self, now_s: float) -> Strike | None:
        """Return the first due strike; faults of the broker wait for the end of the last one."""
        under_way = [*(act for _, _, act, _ in self._active), *(act for _, act, _ in self._undone)]
        waits = any(act.of_broker for act in under_way)
        for strike in self._due:
            if strike.at_s > now_s:
                return None
            if not (waits and FAULTS[strike.kind].of_broker):
                return strike
        return None

    def undo_all(self) -> None:
        """Undo all active faults."""
        while self._active:
            self._undo()

    def _undo_if_ready(self, now: float) -> None:
        """Undo the next fault if that needs no wait; otherwise, check again soon."""
        _, number, act, fault = self._active[0]
        if act.ready() or now > fault.at + self._LONGEST_S:
            self._undo()
        else:
            heapq.heapreplace(self._active, (now + self._AGAIN_S, number, act, fault))

    def _over(self, since: float, act: FaultKind, fault: Fault) -> bool:
        left = act.left(fault)
        if left and time.monotonic() - since > self._LONGEST_S:
            raise AssertionError(f"{act.name}: {self._LONGEST_S:g} s after it was undone: {left}")
        return not left

    def _undo(self) -> None:
        _, _, act, fault = heapq.heappop(self._active)
        act.undo()
        fault.until = time.monotonic()
        if act.left(fault):
            self._undone.append((fault.until, act, fault))
        if not act.second:  # with another server, recovery need not wait for this.
            fault.lifted = fault.until
