"""Turns outcomes into the texts that the screen, the report and the JSON file share."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.remarks import WHY_SHORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.model import Outcome


def header(ours: str, baseline: str) -> tuple[str, str, str, str, str, str]:
    """Return the head of the table, given the two names."""
    return ("figure", ours, baseline, "ratio", "target", "")


def cells(outcome: Outcome) -> tuple[str, str, str, str, str, str]:
    """Return the cells of the outcome's line in the table."""
    row = outcome.row
    return (
        f"{row.title} ({row.unit})",
        _spread(outcome.ours, row.digits),
        _spread(outcome.baseline, row.digits),
        _spread(outcome.ratios, 2, suffix="x"),
        str(row.target),
        "pass" if outcome.passed else "short",
    )


def _spread(values: Sequence[float], digits: int, suffix: str = "") -> str:
    def text(value: float) -> str:
        return f"{value:,.{digits}f}"

    middle = text(median(values)) + suffix
    if len(values) == 1:
        return middle
    return f"{middle} ({text(min(values))} to {text(max(values))})"


def shortfalls(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a sentence for each row that misses its target, with the reason where known."""
    return [
        f"{outcome.row.title}: {WHY_SHORT.get(outcome.row.key, 'no reason is known yet.')}"
        for outcome in outcomes
        if not outcome.passed
    ]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return everything known of the outcome, every sample included."""
    row = outcome.row
    return {
        "title": row.title,
        "unit": row.unit,
        "target": str(row.target),
        "passed": outcome.passed,
        "ratio": outcome.ratio,
        "ratios": outcome.ratios,
        "ours": {"median": median(outcome.ours), "samples": list(outcome.ours)},
        "baseline": {"median": median(outcome.baseline), "samples": list(outcome.baseline)},
    }
