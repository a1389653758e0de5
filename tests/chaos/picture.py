"""The picture of a run: throughput over time, with marked faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.run import Outcome


def draw(outcome: Outcome, path: Path) -> None:
    """Write an SVG (or the format of the suffix): tasks per second, and a row for each fault."""
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "reliq"  # the same run gives the same file.
    from matplotlib import pyplot as plt

    end = int(outcome.settled - outcome.began) + 1
    # A long run is drawn in steps of some seconds, to reduce noise.
    step = max(1, end // 600)
    seconds = range(0, end, step)
    kinds = sorted({fault.kind for fault in outcome.faults if fault.applied})
    figure, (rates, faults) = plt.subplots(
        2,
        1,
        sharex=True,
        figsize=(12, 6.5),
        height_ratios=(2, max(1, len(kinds) / 6)),
        layout="constrained",
    )
    for counts, name, color in (
        (outcome.publishes, "confirmed", "#9aa5b1"),
        (outcome.finishes, "finished", "#1f77b4"),
    ):
        points = [sum(counts.get(s + i, 0) for i in range(step)) / step for s in seconds]
        rates.plot(list(seconds), points, label=name, color=color, linewidth=1.2)
    rates.set_ylabel("tasks a second")
    rates.set_ylim(bottom=0)
    rates.legend(loc="upper right")
    verdict = outcome.verdict
    rates.set_title(
        f"{verdict.tasks:,} confirmed tasks, {sum(f.applied for f in outcome.faults)} faults, "
        f"{len(verdict.lost)} lost, {verdict.duplicates.total()} run again (seed "
        f"{outcome.settings.seed})"
    )
    colors = mpl.colormaps["tab20"]
    for row, kind in enumerate(kinds):
        color = colors(row % 20)
        for fault in outcome.faults:
            if fault.kind != kind or not fault.applied:
                continue
            at = fault.at - outcome.began
            faults.barh(
                row, max(fault.until - fault.at, end / 600), left=at, height=0.7, color=color
            )
            rates.axvline(at, color=color, alpha=0.25, linewidth=0.6)
    faults.set_yticks(range(len(kinds)), kinds)
    faults.invert_yaxis()
    faults.set_xlabel("seconds")
    faults.set_xlim(0, end)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
