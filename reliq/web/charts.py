"""Numbers over time, for the charts that ``templates/charts.html`` draws.

Every chart has a label in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from .texts import rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..admin import Snapshot

_BOX = (48, 10, 664, 128)
"""The place of a chart's lines: left, top, width, height."""
_STEPS = (1, 2, 2.5, 5, 10)


Points: TypeAlias = "list[list[tuple[float, float]]]"
Labels: TypeAlias = "Sequence[tuple[float, str]]"
"""Labels of a time axis: position, from 0 to 1, and text."""


def points(
    values: Sequence[float | None], top: float, box: tuple[int, int, int, int] = _BOX
) -> Points:
    """Return the points of the values, one list for each stretch without a gap."""
    left, upper, width, height = box
    step = width / max(len(values) - 1, 1)
    lines: Points = []
    whole = False
    for n, value in enumerate(values):
        if value is None:
            whole = False
            continue
        if not whole:
            lines.append([])
            whole = True
        lines[-1].append((left + n * step, upper + height * (1 - min(value / top, 1))))
    return lines


def path(lines: Points) -> str:
    """Return the path of lines. A single value is a dot: a very short line with round ends."""
    return " ".join(
        " ".join(f"{'L' if n else 'M'}{x:.1f} {y:.1f}" for n, (x, y) in enumerate(points))
        + ("" if len(points) > 1 else " h0.1")
        for points in lines
    )


def area(lines: Points, bottom: float) -> str:
    """Return the path of the area between lines and *bottom*."""
    return " ".join(
        f"{path([line])} L{line[-1][0]:.1f} {bottom} L{line[0][0]:.1f} {bottom} Z"
        for line in lines
        if len(line) > 1
    )


def top_of(values: Sequence[float | None]) -> float:
    """Return the end of an axis, a round number."""
    most = max((value for value in values if value is not None), default=0)
    if most <= 0:
        return 1
    power = 10.0 ** (len(str(int(most))) - 1) if most >= 1 else 0.1
    while power * 10 < most:
        power *= 10
    return next(power * step for step in _STEPS if power * step >= most)


def short(value: float) -> str:
    """Return a short form of a number: 1.2k, 3M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


MINUTE_MS = 60_000
RANGES = {"1h": 60, "6h": 360, "24h": 1440, "72h": 4320}
"""The time ranges of charts, in minutes."""
_POINTS = 180
_LABELS = 4


def points_of(minutes: int) -> int:
    """Return the number of points of a chart over *minutes*."""
    return min(minutes, _POINTS)


@dataclass(frozen=True, slots=True)
class Series:
    """Snapshots of one queue since *first_ms*: one or None for each step of *step_ms*."""

    first_ms: int
    step_ms: int
    parts: list[Snapshot | None]

    def gauge(self, name: str) -> list[float | None]:
        """Return the number of messages at each step."""
        return [None if part is None else float(getattr(part, name)) for part in self.parts]

    def per_second(self, name: str) -> list[float | None]:
        """Return the rate a second at each step."""
        return [
            None if part is None or not part.span_ms
            # After a gap without snapshots, the span includes the gap.
            else getattr(part, name) * 1000 / part.span_ms
            for part in self.parts
        ]  # fmt: skip

    @property
    def labels(self) -> Labels:
        """The labels of the time axis."""
        whole_ms = self.step_ms * max(len(self.parts) - 1, 1)
        day = whole_ms > 36 * 60 * MINUTE_MS
        labels = []
        for n in range(_LABELS + 1):
            at = datetime.fromtimestamp(
                (self.first_ms + whole_ms * n // _LABELS) / 1000, timezone.utc
            )
            labels.append((n / _LABELS, at.strftime("%d %b %H:%M" if day else "%H:%M")))
        return labels


def series(snapshots: Sequence[Snapshot], now_ms: int, minutes: int) -> Series:
    """Return the snapshots of the last *minutes* as a series, each at its step."""
    count = points_of(minutes)
    step_ms = minutes * MINUTE_MS // count
    first_ms = now_ms // MINUTE_MS * MINUTE_MS - minutes * MINUTE_MS + step_ms
    parts: list[Snapshot | None] = [None] * count
    for snapshot in snapshots:
        place = (snapshot.at_ms - first_ms + step_ms - 1) // step_ms
        if 0 <= place < count:
            parts[place] = snapshot
    return Series(first_ms, step_ms, parts)


class History(NamedTuple):
    """A chart of three lines, each with the class that gives it its colour."""

    lines: list[tuple[str, Sequence[float | None]]]
    top: float
    labels: Labels
    says: str
    """Its label, for screen readers, has the last values."""


def depth(shown: Series) -> History:
    """Return the chart of the number of messages, by state."""
    names = {"ready": "ready", "in flight": "unacked", "dead": "dead"}
    lines = {name: shown.gauge(key) for name, key in names.items()}
    return _history(shown, lines, "Messages", "{:,.0f}".format)


def traffic(shown: Series) -> History:
    """Return the chart of messages a second."""
    names = {"published": "published", "acknowledged": "acked", "failed": "failed"}
    lines = {name: shown.per_second(key) for name, key in names.items()}
    return _history(shown, lines, "Messages a second", rate)


def _history(
    shown: Series,
    values: Mapping[str, Sequence[float | None]],
    title: str,
    text: Callable[[float], str],
) -> History:
    lines, readings = [], []
    for css, (name, each) in zip(("", "second", "dead"), values.items(), strict=True):
        lines.append((css, each))
        known = [value for value in each if value is not None]
        readings.append(f"{name} {text(known[-1])}" if known else f"{name} unknown")
    top = top_of([value for _, each in lines for value in each])
    return History(lines, top, shown.labels, f"{title}: {', '.join(readings)} at the end")
