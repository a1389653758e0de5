"""Pictures of a run: ratios with their targets, growth, latency. Needs matplotlib."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from benchmarks.peers import KOMBU

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.model import Outcome
    from benchmarks.results import Run

GROWING = {
    "growth-waiting-publish": "publish, messages waiting",
    "growth-waiting-consume": "consume and ack, messages waiting",
    "growth-delayed-publish": "publish, messages delayed",
    "growth-delayed-consume": "consume and ack, messages delayed",
    "growth-consumers": "consume and ack, consumers of one queue",
    "growth-queues": "consume and ack, queues of one consumer",
}
QUANTILES = ("p50", "p99", "p999")
DPI = 110


def draw(run: Run, directory: Path) -> list[Path]:
    """Write the pictures for which the run has values; return their files."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    directory.mkdir(parents=True, exist_ok=True)
    made = []
    for name, drawn in (("ratios", _ratios), ("growth", _growth), ("latency", _latency)):
        figure = drawn(plt, run)
        if figure is None:
            continue
        path = directory / f"{name}.png"
        figure.savefig(path, dpi=DPI)
        plt.close(figure)
        made.append(path)
    return made


def _ratios(plt: Any, run: Run) -> Any:
    """Return bars of values compared with Kombu's redis://, with targets as marks."""
    rows = [
        (outcome, target)
        for outcome in run.outcomes
        for target in outcome.row.targets
        if target.kind == "ratio_at_least" and target.against == KOMBU and outcome.ratios(KOMBU)
    ]
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.36 * len(rows)), layout="constrained")
    places = list(range(len(rows)))
    middles = [median(outcome.ratios(KOMBU)) for outcome, _ in rows]
    spread = [
        [m - min(o.ratios(KOMBU)) for m, (o, _) in zip(middles, rows, strict=True)],
        [max(o.ratios(KOMBU)) - m for m, (o, _) in zip(middles, rows, strict=True)],
    ]
    axes.barh(places, middles, xerr=spread, color="#4878a8", ecolor="#444444", height=0.6)
    axes.plot([t.value for _, t in rows], places, "|", color="#c03028", ms=14, mew=2.5)
    axes.set_yticks(places, [outcome.row.title for outcome, _ in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color="#888888", lw=0.8)
    axes.set_xlabel("ratio to Kombu's redis://: median and range; red: target")
    return figure


def _growth(plt: Any, run: Run) -> Any:
    """Return a small chart of rate against number for each growing figure."""
    by_key = {outcome.row.key: outcome for outcome in run.outcomes}
    charts = {key: _numbered(by_key, key) for key in GROWING}
    charts = {key: points for key, points in charts.items() if points}
    if not charts:
        return None
    lines = (len(charts) + 1) // 2
    figure, grid = plt.subplots(
        lines, 2, figsize=(9, 2.6 * lines), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(charts) :]:
        axes.remove()
    for axes, (key, points) in zip(grid.flat, charts.items(), strict=False):
        for name in points[0][1].samples:
            axes.plot(
                [number for number, _ in points],
                [median(outcome.samples[name]) for _, outcome in points],
                marker="o",
                label=run.labels[name].replace("`", ""),
            )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        what, _, counted = GROWING[key].rpartition(", ")
        axes.set_title(what, fontsize=9)
        axes.set_xlabel(counted, fontsize=8)
        axes.set_ylabel("messages/s", fontsize=8)
        axes.legend(fontsize=7)
    return figure


def _numbered(by_key: dict[str, Outcome], key: str) -> list[tuple[int, Outcome]]:
    found = []
    for name, outcome in by_key.items():
        number = name.removeprefix(f"{key}-")
        if number != name and number.isdigit():
            found.append((int(number), outcome))
    return sorted(found, key=lambda pair: pair[0])


def _latency(plt: Any, run: Run) -> Any:
    """Return bars of the quantiles by transport, when idle and at half load."""
    by_key = {outcome.row.key: outcome for outcome in run.outcomes}
    kinds = [kind for kind in ("idle", "half") if f"latency-{kind}-p50" in by_key]
    if not kinds:
        return None
    figure, grid = plt.subplots(
        1, len(kinds), figsize=(9, 3.4), squeeze=False, sharey=True, layout="constrained"
    )
    for axes, kind in zip(grid.flat, kinds, strict=True):
        outcomes = [by_key[f"latency-{kind}-{quantile}"] for quantile in QUANTILES]
        _grouped(axes, outcomes, run)
        axes.set_yscale("log")
        axes.set_title("idle" if kind == "idle" else "at half load", fontsize=9)
        axes.set_ylabel("ms", fontsize=8)
    names = grid[0, 0].get_legend_handles_labels()
    figure.legend(*names, loc="outside lower center", ncols=4, fontsize=7)
    return figure


def _grouped(axes: Any, outcomes: Sequence[Outcome], run: Run) -> None:
    names = list(outcomes[0].samples)
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        heights = [median(outcome.samples[name]) for outcome in outcomes]
        across = [number + place * width for number in range(len(outcomes))]
        axes.bar(across, heights, width, label=run.labels[name].replace("`", ""))
    middles = [number + 0.4 - width / 2 for number in range(len(outcomes))]
    axes.set_xticks(middles, ["p50", "p99", "p99.9"])
