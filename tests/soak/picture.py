"""The picture of a soak: throughput, processor time, memory and keys over time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from tests.soak.verdict import cpu_a_task, throughput

if TYPE_CHECKING:
    from pathlib import Path

    from tests.soak.model import Seen

_POINTS = 60


def draw(seen: Seen, path: Path) -> None:
    """Write an SVG, or the format of the suffix; the grey lines are reconnects."""
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "reliq"  # the same run gives the same file
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(4, 1, sharex=True, figsize=(12, 11), layout="constrained")
    rates, times, memory, keys = axes
    samples = seen.samples
    names = list(samples[0].processes)
    coarse = samples[:: max(1, len(samples) // _POINTS)]
    spans = list(pairwise(coarse))
    middles = [_minutes((a.at + b.at) / 2) for a, b in spans]
    rates.plot(middles, [throughput(a, b) for a, b in spans], color="#1f77b4")
    rates.set_ylabel("tasks a second")
    rates.set_title(
        f"{seen.tasks:,} tasks, {len(seen.visits):,} visits, {len(seen.reconnects)} reconnects"
    )
    for name in names:
        times.plot(middles, [cpu_a_task(a, b, name) for a, b in spans], label=name)
    times.set_ylabel("processor time, ms a task")
    at = [_minutes(sample.at) for sample in samples]
    for name in names:
        memory.plot(at, [s.processes[name].rss_kb / 1024 for s in samples], label=name)
    memory.set_ylabel("resident memory, MiB")
    keys.plot(at, [sum(sample.keys.values()) for sample in samples], label="keys", linewidth=0.8)
    keys.plot(at, [s.server_kb / 100 for s in samples], label="used_memory, 100 KiB", linewidth=0.8)
    keys.set_ylabel("broker")
    keys.set_xlabel("minutes")
    for axis in axes:
        _finish(axis, seen)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _finish(axis: Any, seen: Seen) -> None:
    axis.set_ylim(bottom=0)
    for at in seen.reconnects:
        axis.axvline(_minutes(at), color="#9aa5b1", alpha=0.35, linewidth=0.6)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _minutes(seconds: float) -> float:
    return seconds / 60
