"""The nemesis: carries out a schedule of strikes, and undoes what is to be undone."""

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
    """Strikes when it is time; called again and again from one thread."""

    _LONGEST_S = 60.0
    """That one may take to be ready to be undone, and to be over after that."""
    _AGAIN_S = 0.05

    def __init__(self, stage: Stage, strikes: Sequence[Strike], began: float) -> None:
        self._stage, self._began = stage, began
        self._due = deque(strikes)
        self._active: list[tuple[float, int, FaultKind, Fault]] = []
        self._undone: list[tuple[float, FaultKind, Fault]] = []
        """And not over yet: what is left of them has to go by itself."""
        self._numbers = count()
        self.faults: list[Fault] = []

    @property
    def done(self) -> bool:
        """Whether all strikes are carried out and undone."""
        return not (self._due or self._active or self._undone)

    def step(self) -> Fault | None:
        """Undo and do what is due; return the fault that struck now."""
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
        """Return the first that is due; one of the broker waits until the one before is over."""
        under_way = [*(act for _, _, act, _ in self._active), *(act for _, act, _ in self._undone)]
        waits = any(act.of_broker for act in under_way)
        for strike in self._due:
            if strike.at_s > now_s:
                return None
            if not (waits and FAULTS[strike.kind].of_broker):
                return strike
        return None

    def undo_all(self) -> None:
        """Leave nothing behind."""
        while self._active:
            self._undo()

    def _undo_if_ready(self, now: float) -> None:
        """Undo the next, unless it would have to be waited for: then it is asked again soon."""
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
        if not act.second:  # where there is another broker, recovery need not wait for this.
            fault.lifted = fault.until
