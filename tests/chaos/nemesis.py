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

    from tests.chaos.faults import FaultKind, Stage
    from tests.chaos.model import Fault, Strike


class Nemesis:
    """Strikes when it is time; called again and again from one thread."""

    def __init__(self, stage: Stage, strikes: Sequence[Strike], began: float) -> None:
        self._stage, self._began = stage, began
        self._due = deque(strikes)
        self._active: list[tuple[float, int, FaultKind, Fault]] = []
        self._numbers = count()
        self.faults: list[Fault] = []

    @property
    def done(self) -> bool:
        """Whether all strikes are carried out and undone."""
        return not (self._due or self._active)

    def step(self) -> Fault | None:
        """Undo and do what is due; return the fault that struck now."""
        now = time.monotonic()
        while self._active and self._active[0][0] <= now:
            self._undo()
        if not self._due or self._due[0].at_s > now - self._began:
            return None
        kind = FAULTS[self._due[0].kind]
        if kind.of_broker and any(active.of_broker for _, _, active, _ in self._active):
            return None  # its turn comes when the other one is over.
        strike = self._due.popleft()
        act = kind(self._stage, strike)
        fault = act.apply()
        self.faults.append(fault)
        if fault.applied and strike.duration_s:
            until = time.monotonic() + strike.duration_s
            heapq.heappush(self._active, (until, next(self._numbers), act, fault))
        return fault

    def undo_all(self) -> None:
        """Leave nothing behind."""
        while self._active:
            self._undo()

    def _undo(self) -> None:
        _, _, act, fault = heapq.heappop(self._active)
        act.undo()
        fault.until = time.monotonic()
        if not act.second:  # where there is another broker, recovery need not wait for this.
            fault.lifted = fault.until
