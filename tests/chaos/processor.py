"""Processor time of a run by user and minute, to explain a slowdown."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.soak.sampling import TICKS, used

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LOOK_S = 1.0
_BUSY = slice(0, 3)  # user, nice, system; see proc_stat(5)
_INTERRUPTS = slice(5, 7)
_STOLEN = 7


def machine() -> Counter[str]:
    """Return the seconds of all cores: `machine` in use, `stolen` by other virtual machines."""
    first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(word) for word in first.split()[1:]]
    busy = sum(ticks[_BUSY]) + sum(ticks[_INTERRUPTS])
    return Counter({"machine": busy / TICKS, "stolen": ticks[_STOLEN] / TICKS})


class Processor:
    """Seconds of processor time in each minute of the run, by user.

    A killed process loses its use since the last sample, at most a second.
    """

    def __init__(self) -> None:
        self._minutes: dict[int, Counter[str]] = {}
        self._next = 0.0
        self._known: dict[int, float] = {}
        self._machine = machine()
        self._suite = time.process_time()

    def look(self, at_s: float, groups: Mapping[str, Iterable[int]]) -> None:
        """Record the use since the last sample; once a second. *groups*: pids by name."""
        if at_s < self._next:
            return
        self._next = at_s + _LOOK_S
        minute = self._minutes.setdefault(int(at_s // 60), Counter())
        for name, pids in groups.items():
            for pid in pids:
                cpu_s = used(pid).cpu_s
                # A smaller value belongs to another process, or a child was not waited for.
                minute[name] += max(0.0, cpu_s - self._known.get(pid, 0.0))
                self._known[pid] = cpu_s
        now, suite = machine(), time.process_time()
        for name in now:
            minute[name] += now[name] - self._machine[name]
        minute["suite"] += suite - self._suite
        self._machine, self._suite = now, suite

    def minutes(self) -> list[dict[str, float]]:
        """Return the minutes of the run, oldest first."""
        return [
            {name: round(seconds, 2) for name, seconds in sorted(self._minutes[at].items())}
            for at in sorted(self._minutes)
        ]
