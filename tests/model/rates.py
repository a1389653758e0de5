"""The starts that a rate permits, counted in windows over every start ever made.

A rate permits at most ``burst + elapsed / interval`` starts in any window. This is checked for each
window that ends now, and so for every window of a run. It is not the formula of the scripts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}
_DEFAULT_BURST_MS = 100


class Rate(NamedTuple):
    """A rate: *number* starts in *unit_ms*, and *burst* at once."""

    number: int
    unit_ms: int
    burst: int

    @classmethod
    def of(cls, text: str) -> Rate:
        """Return the rate that x-rate states."""
        found = re.fullmatch(r"(\d+)/([smh])(?: burst (\d+))?", text)
        assert found, text
        number, unit_ms = int(found[1]), _UNITS_MS[found[2]]
        default = max(1, number * _DEFAULT_BURST_MS // unit_ms)
        return cls(number, unit_ms, int(found[3]) if found[3] else default)

    def permitted(self, starts: list[int], now: int) -> int:
        """Return the number of further starts now, after *starts* (ms, oldest first)."""
        most = self.burst
        for count, at in enumerate(reversed(starts), 1):
            most = min(most, self.burst + (now - at) * self.number // self.unit_ms - count)
        return max(0, most)

    def wait_ms(self, starts: list[int], now: int) -> int:
        """Return the ms until the next start is permitted; 0: it is permitted now."""
        wait = 0
        for count, at in enumerate(reversed(starts), 1):
            beyond_ms = (count + 1 - self.burst) * self.unit_ms
            wait = max(wait, at - now - (-beyond_ms // self.number))
        return wait


@dataclass
class Start:
    """One start."""

    at: int
    tag: str
    back: bool = False
    """Whether its message was handed back unstarted, so that it counts no more."""
    late: bool = False
    """Whether there was a later start when it was handed back; then it may still count."""


@dataclass
class Starts:
    """All starts of a queue, and the rate in force."""

    rate: Rate | None = None
    made: list[Start] = field(default_factory=list)
    changed: int = 0
    """The time when the rate in force was set."""
    before: int = 0
    """The number of starts before that."""

    def change(self, text: str | None, now: int) -> None:
        """Put another rate in force."""
        rate = Rate.of(text) if text else None
        if rate != self.rate:
            self.rate, self.changed, self.before = rate, now, len(self.made)

    def note(self, tags: Iterable[str], now: int) -> None:
        """Note starts."""
        self.made += [Start(now, tag) for tag in tags]

    def give_back(self, tag: str) -> None:
        """Note that the last start of a message was none."""
        start = next((s for s in reversed(self.made) if s.tag == tag), None)
        if start is not None:
            start.back, start.late = True, self.made[-1].at > start.at

    def permitted(self, now: int) -> tuple[int, int]:
        """Return the fewest starts that the rate in force must permit now, and the most."""
        rate = self.rate
        assert rate is not None
        counts = [rate.permitted(starts, now) for starts in self._views(rate)]
        return min(counts), counts[0]

    def wait_ms(self, now: int) -> tuple[int, int]:
        """Return the ms until the next start, at the earliest and at the latest."""
        rate = self.rate
        assert rate is not None
        waits = [rate.wait_ms(starts, now) for starts in self._views(rate)]
        return waits[0], max(waits)

    def _views(self, rate: Rate) -> list[list[int]]:
        """Return the starts as the most generous rule counts them, and as stricter ones may.

        Starts before a change of the rate may count or not, or the change may use up the burst.
        """
        since = self.made[self.before :]
        strict = [s.at for s in since if not s.back or s.late]
        earlier = [s.at for s in self.made[: self.before]]
        spent = [self.changed] * rate.burst if self.changed else []
        return [[s.at for s in since if not s.back], earlier + strict, spent + strict]
