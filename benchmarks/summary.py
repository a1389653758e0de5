"""Turns outcomes into the texts that the screen, the page and the README share."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks.peers import BARE, CLIENT, KOMBU, TOOL
from benchmarks.remarks import WHY_SHORT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.model import Outcome, Target

LIMITS = (BARE, CLIENT, TOOL)


def others_of(outcomes: Sequence[Outcome], limits: bool) -> list[str]:
    """Return the peers beside ours, in their order: the raw limits, or all but these."""
    names = dict.fromkeys(name for outcome in outcomes for name in list(outcome.samples)[1:])
    return [name for name in names if (name in LIMITS) == limits]


def table(
    outcomes: Sequence[Outcome], labels: Mapping[str, str], limits: bool = False
) -> list[list[str]]:
    """Return the lines of a section's table, head first: ours, each other with ratio, targets."""
    others = others_of(outcomes, limits)
    if limits:
        outcomes = [outcome for outcome in outcomes if set(others) & set(outcome.samples)]
    if not outcomes or (limits and not others):
        return []
    head = ["figure", labels[next(iter(outcomes[0].samples))]]
    for name in others:
        head += [labels[name], "ratio"]
    lines = [head if limits else [*head, "target", ""]]
    for outcome in outcomes:
        row = outcome.row
        cells = [f"{row.title} ({row.unit})", _spread(outcome.ours, row.digits)]
        for name in others:
            cells += [
                _spread(outcome.samples.get(name, ()), row.digits),
                _spread(outcome.ratios(name), 2, suffix="x"),
            ]
        lines.append(cells if limits else [*cells, targets_of(outcome, labels), verdict(outcome)])
    return lines


def targets_of(outcome: Outcome, labels: Mapping[str, str]) -> str:
    """Return the row's targets, each with its peer where that is not Kombu's Redis transport."""
    return ", ".join(_target(target, labels) for target in outcome.row.targets)


def verdict(outcome: Outcome) -> str:
    """Return "pass" or "short" for a row that has targets that could be judged."""
    if not outcome.verdicts():
        return ""
    return "pass" if outcome.passed else "short"


def shortfalls(outcomes: Sequence[Outcome], labels: Mapping[str, str]) -> list[str]:
    """Return a sentence for each target that is missed: what was reached, and the limit."""
    missed = []
    for outcome in outcomes:
        for target, met in outcome.verdicts():
            if met:
                continue
            ratio, row = target.is_ratio, outcome.row
            reached = median(outcome.ratios(target.against) if ratio else outcome.ours)
            digits = 2 if ratio else row.digits
            unit = "x" if ratio or row.unit == "x" else f" {row.unit}"
            why = WHY_SHORT.get(row.key, "the limit is not known yet")
            missed.append(
                f"{row.title}: {_number(reached, digits)}{unit}, target "
                f"{_target(target, labels)}: {why}."
            )
    return missed


def middle(values: Sequence[float], digits: int, suffix: str = "") -> str:
    """Return the median as text, nothing for no values."""
    return _number(median(values), digits) + suffix if values else ""


def _target(target: Target, labels: Mapping[str, str]) -> str:
    if not target.is_ratio or target.against == KOMBU:
        return str(target)
    return f"{target} of {labels.get(target.against, target.against)}"


def _spread(values: Sequence[float], digits: int, suffix: str = "") -> str:
    if len(values) < 2:
        return middle(values, digits, suffix)
    least, most = (_number(edge, digits) for edge in (min(values), max(values)))
    return f"{middle(values, digits, suffix)} ({least} to {most})"


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"
