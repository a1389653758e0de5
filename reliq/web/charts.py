"""Charts of numbers over time, drawn by the server as SVG without styles and scripts.

The style sheet gives the classes their colours. Every chart has a label in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeAlias

from markupsafe import Markup

from ..printable import plain
from .texts import rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..admin import Snapshot

_WIDTH, _HEIGHT = 96, 22
_CHART_WIDTH, _CHART_HEIGHT = 720, 160
_LEFT, _BOTTOM, _TOP = 48, 22, 10
_BOX = (_LEFT, _TOP, _CHART_WIDTH - _LEFT - 8, _CHART_HEIGHT - _TOP - _BOTTOM)
_STEPS = (1, 2, 2.5, 5, 10)


Line: TypeAlias = "tuple[str, Sequence[float | None]]"
"""One line of a chart: the class that gives it its colour, and its values."""
Labels: TypeAlias = "Sequence[tuple[float, str]]"
"""Labels of a time axis: position, from 0 to 1, and text."""


def sparkline(values: Sequence[float | None], says: str) -> Markup:
    """Return a small line without axes; empty for fewer than two values."""
    known = [value for value in values if value is not None]
    if len(known) < 2:  # noqa: PLR2004 - a line has two ends
        return Markup("")
    most = max(known) or 1
    lines, bottom = _points(values, most, (0, 1, _WIDTH, _HEIGHT - 2)), _HEIGHT - 1
    area = " ".join(
        f"{_path([points])} L{points[-1][0]:.1f} {bottom} L{points[0][0]:.1f} {bottom} Z"
        for points in lines
        if len(points) > 1
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
        '<path class="area" d="{}"/><path class="line" d="{}"/></svg>'
    ).format(_WIDTH, _HEIGHT, _WIDTH, _HEIGHT, plain(says), area, _path(lines))


def chart(lines: Sequence[Line], labels: Labels, says: str) -> Markup:
    """Return lines over one time axis, with numbers on the left."""
    known = [value for _, values in lines for value in values if value is not None]
    top = _round(max(known, default=0))
    drawn = [
        Markup('<path class="line {}" d="{}"/>').format(css, _path(points))
        for css, values in lines
        if (points := _points(values, top, _BOX))
    ]
    return _framed(drawn, top, labels, says)


def bars(values: Sequence[int], labels: Labels, says: str) -> Markup:
    """Return a bar for each value, side by side."""
    top = _round(max(values, default=0))
    left, upper, width, height = _BOX
    each = width / max(len(values), 1)
    drawn = []
    for n, value in enumerate(values):
        if value:
            tall = max(height * value / top, 1.5)
            drawn.append(
                Markup(
                    '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>'
                ).format(left + n * each + 0.5, upper + height - tall, max(each - 1, 1), tall)
            )
    return _framed(drawn, top, labels, says)


def _framed(drawn: Sequence[Markup], top: float, labels: Labels, says: str) -> Markup:
    left, upper, width, height = _BOX
    parts = []
    for share in (0, 0.5, 1):
        y = upper + height * (1 - share)
        parts.append(
            Markup(
                '<path class="grid" d="M{} {:.1f} H{}"/>'
                '<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(left, y, left + width, left - 6, y + 4, short(top * share))
        )
    for at, text in labels:
        side = "start" if at < 0.02 else "end" if at > 0.98 else "middle"  # noqa: PLR2004 - edges
        tick = Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>')
        parts.append(tick.format(left + width * at, upper + height + 16, side, text))
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(_CHART_WIDTH, _CHART_HEIGHT, plain(says), Markup("").join([*parts, *drawn]))


def meter(parts: Sequence[tuple[str, float]], says: str) -> Markup:
    """Return one bar divided into *parts*: (class, share of 1), from the left."""
    drawn, at = [], 0.0
    for css, share in parts:
        if share > 0:
            drawn.append(
                Markup('<rect class="{}" x="{:.2f}" y="0" width="{:.2f}" height="8"/>').format(
                    css, at * 100, share * 100
                )
            )
        at += share
    return Markup(
        '<svg class="meter" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><rect class="rest" width="100" height="8"/>{}</svg>'
    ).format(plain(says), Markup("").join(drawn))


def _points(
    values: Sequence[float | None], top: float, box: tuple[int, int, int, int]
) -> list[list[tuple[float, float]]]:
    """Return the points of the values, one list for each stretch without a gap."""
    left, upper, width, height = box
    step = width / max(len(values) - 1, 1)
    found: list[list[tuple[float, float]]] = []
    whole = False
    for n, value in enumerate(values):
        if value is None:
            whole = False
            continue
        if not whole:
            found.append([])
            whole = True
        found[-1].append((left + n * step, upper + height * (1 - min(value / top, 1))))
    return found


def _path(lines: Sequence[Sequence[tuple[float, float]]]) -> str:
    # A single value is a dot: a very short line with round ends.
    return " ".join(
        " ".join(f"{'L' if n else 'M'}{x:.1f} {y:.1f}" for n, (x, y) in enumerate(points))
        + ("" if len(points) > 1 else " h0.1")
        for points in lines
    )


def _round(most: float) -> float:
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


def series(found: Sequence[Snapshot], now_ms: int, minutes: int) -> Series:
    """Return the snapshots of the last *minutes* as a series, each at its step."""
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
    """Return a small line of acknowledgements a second."""
    values = shown.per_second("acked")
    known = [value for value in values if value is not None]
    most = rate(max(known)) if known else ""
    return sparkline(values, f"Acknowledged in the last hour: at most {most} a second")


def depth(shown: Series) -> Markup:
    """Return the chart of the number of messages, by state."""
    names = {"ready": "ready", "in flight": "unacked", "dead": "dead"}
    lines = {name: shown.gauge(key) for name, key in names.items()}
    return _history(shown, lines, "Messages", "{:,.0f}".format)


def traffic(shown: Series) -> Markup:
    """Return the chart of messages a second."""
    names = {"published": "published", "acknowledged": "acked", "failed": "failed"}
    lines = {name: shown.per_second(key) for name, key in names.items()}
    return _history(shown, lines, "Messages a second", rate)


def _history(
    shown: Series,
    values: Mapping[str, Sequence[float | None]],
    title: str,
    text: Callable[[float], str],
) -> Markup:
    """Return a chart of three lines. Its label, for screen readers, has their last values."""
    lines, said = [], []
    for css, (name, each) in zip(("", "second", "dead"), values.items(), strict=True):
        lines.append((css, each))
        known = [value for value in each if value is not None]
        said.append(f"{name} {text(known[-1])}" if known else f"{name} unknown")
    return chart(lines, shown.labels, f"{title}: {', '.join(said)} at the end")
