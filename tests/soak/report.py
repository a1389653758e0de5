"""The report of a soak, as JSON and as the numbers of the picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.soak import verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.soak.model import Seen
    from tests.soak.settings import Settings

_SHOWN = 100


def summary(
    seen: Seen, settings: Settings, found: Sequence[str], command: str, about: Mapping[str, str]
) -> dict[str, Any]:
    """Return all data of the run, ready for JSON."""
    failed = [visit for visit in seen.visits if visit.error]
    return {
        "passed": not found,
        "findings": list(found[:_SHOWN]),
        "more_findings": max(0, len(found) - _SHOWN),
        "command": command,
        "surroundings": dict(about),
        "minutes": round(settings.duration_s / 60, 1),
        "rate": settings.rate,
        "idle": settings.idle,
        "bounds": asdict(settings.bounds),
        "tasks": seen.tasks,
        "reconnects": [round(at, 1) for at in seen.reconnects],
        "visits": len(seen.visits),
        "visits_cut_off": len(failed),
        "limits": seen.limits,
        "probes": [asdict(probe) for probe in seen.probes],
        "figures": figures(seen),
        "samples": [asdict(sample) for sample in seen.samples],
    }


def figures(seen: Seen) -> dict[str, tuple[float, float]]:
    """Return the compared values: throughput and time per task of both tenths, memory, keys."""
    samples = seen.samples
    if len(samples) < verdict.FEWEST:
        return {}
    first, last = verdict.tenths(samples)
    pairs = {"tasks a second": (verdict.throughput(*first), verdict.throughput(*last))}
    for name in samples[0].processes:
        pairs[f"processor time of {name}, ms a task"] = (
            verdict.cpu_a_task(*first, name),
            verdict.cpu_a_task(*last, name),
        )
    for series in verdict.held(samples):
        pairs[series.name] = verdict.halfway_and_end(samples, series.value)
    return {name: (round(a, 2), round(b, 2)) for name, (a, b) in pairs.items()}


def write_json(card: Mapping[str, Any], path: Path) -> None:
    """Write the report as JSON."""
    path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
