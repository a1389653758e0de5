"""The history of a queue as series for charts: a value for each equal part of a time, or a gap."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from .charts import Line, Times, chart, sparkline
from .texts import rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from markupsafe import Markup

    from ..admin import Snapshot

MINUTE_MS = 60_000
RANGES = {"1h": 60, "6h": 360, "24h": 1440, "72h": 4320}
"""What a chart may show, in minutes."""
_POINTS = 180
_LABELS = 4


def points_of(minutes: int) -> int:
    """Return into how many parts so long a time is divided."""
    return min(minutes, _POINTS)


@dataclass(frozen=True, slots=True)
class Series:
    """Snapshots of one queue, from *first_ms* on, each part of *step_ms* with one or none."""

    first_ms: int
    step_ms: int
    parts: list[Snapshot | None]

    def gauge(self, name: str) -> list[float | None]:
        """Return how many messages there were."""
        return [None if part is None else float(getattr(part, name)) for part in self.parts]

    def per_second(self, name: str) -> list[float | None]:
        """Return how often it happened, a second."""
        return [
            None if part is None or not part.span_ms
            # After a time in which nobody counted, the span has all of that time.
            else getattr(part, name) * 1000 / part.span_ms
            for part in self.parts
        ]  # fmt: skip

    @property
    def times(self) -> Times:
        """Return the moments for the axis of a chart."""
        last_ms = self.first_ms + self.step_ms * max(len(self.parts) - 1, 1)
        whole_ms = last_ms - self.first_ms
        day = whole_ms > 36 * 60 * MINUTE_MS
        labels = []
        for n in range(_LABELS + 1):
            at = datetime.fromtimestamp(
                (self.first_ms + whole_ms * n // _LABELS) / 1000, timezone.utc
            )
            labels.append((n / _LABELS, at.strftime("%d %b %H:%M" if day else "%H:%M")))
        return Times(self.first_ms, last_ms, tuple(labels))


def series(found: Sequence[Snapshot], now_ms: int, minutes: int) -> Series:
    """Return *found*, which was asked for so many minutes, at its places in that time."""
    count = points_of(minutes)
    step_ms = minutes * MINUTE_MS // count
    first_ms = now_ms // MINUTE_MS * MINUTE_MS - minutes * MINUTE_MS + step_ms
    parts: list[Snapshot | None] = [None] * count
    for snapshot in found:
        place = (snapshot.at_ms - first_ms + step_ms - 1) // step_ms
        if 0 <= place < count:
            parts[place] = snapshot
    return Series(first_ms, step_ms, parts)


def spark(shown: Series) -> Markup:
    """Return a small line of what was acknowledged."""
    values = shown.per_second("acked")
    known = [value for value in values if value is not None]
    most = rate(max(known)) if known else ""
    return sparkline(values, f"Acknowledged in the last hour: at most {most} a second")


def depth(shown: Series) -> Markup:
    """Return the chart of how many messages there were, by place."""
    lines = [
        Line("ready", "", shown.gauge("ready")),
        Line("in flight", "second", shown.gauge("unacked")),
        Line("dead", "dead", shown.gauge("dead")),
    ]
    return chart(lines, shown.times, f"Messages: {_said(lines, '{:,.0f}'.format)}")


def traffic(shown: Series) -> Markup:
    """Return the chart of messages a second."""
    lines = [
        Line("published", "", shown.per_second("published")),
        Line("acknowledged", "second", shown.per_second("acked")),
        Line("failed", "dead", shown.per_second("failed")),
    ]
    return chart(lines, shown.times, f"Messages a second: {_said(lines, rate)}")


def _said(lines: Sequence[Line], text: Callable[[float], str]) -> str:
    """Return what the lines end with, for who does not see them."""
    said = []
    for line in lines:
        known = [value for value in line.values if value is not None]
        said.append(f"{line.name} {text(known[-1])}" if known else f"{line.name} not known")
    return ", ".join(said) + " at the end"
