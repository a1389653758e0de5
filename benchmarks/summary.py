"""Turns outcomes into the texts for the screen, the page and the README."""

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
    """Return the peers other than reliq, in order: the raw limits, or all but these."""
    names = dict.fromkeys(name for outcome in outcomes for name in list(outcome.samples)[1:])
    return [name for name in names if (name in LIMITS) == limits]


def table(
    outcomes: Sequence[Outcome], labels: Mapping[str, str], limits: bool = False
) -> list[list[str]]:
    """Return a section's table: head, then reliq, each other peer with its ratio, and targets."""
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
    """Return the row's targets, each with its peer unless that is Kombu's Redis transport."""
    return ", ".join(_target(target, labels) for target in outcome.row.targets)


def verdict(outcome: Outcome) -> str:
    """Return "pass" or "miss" for a row with a target and enough data, else ""."""
    if not outcome.verdicts():
        return ""
    return "pass" if outcome.passed else "miss"


def shortfalls(outcomes: Sequence[Outcome], labels: Mapping[str, str]) -> list[str]:
    """Return a text for each row that misses targets: values, targets and reason.

    A reason that several rows share is printed once.
    """
    texts = []
    explained: dict[str, str] = {}
    for outcome in outcomes:
        missed = [
            f"{_reached(outcome, target)} (target {_target(target, labels)})"
            for target, met in outcome.verdicts()
            if not met
        ]
        if not missed:
            continue
        title, why = outcome.row.title, WHY_SHORT.get(outcome.row.key, "The reason is unknown.")
        if why in explained:
            why = f"Same reason as: {explained[why]}."
        elif outcome.row.key in WHY_SHORT:
            explained[why] = title
        texts.append(f"{title}: {'; '.join(missed)}. {why}")
    return texts


def _reached(outcome: Outcome, target: Target) -> str:
    row = outcome.row
    if target.is_ratio:
        return f"{_number(median(outcome.ratios(target.against)), 2)}x"
    unit = row.unit if row.unit in {"x", "%"} else f" {row.unit}"
    return f"{_number(median(outcome.ours), row.digits)}{unit}"


def middle(values: Sequence[float], digits: int, suffix: str = "") -> str:
    """Return the median as text; empty if there are no values."""
    return _number(median(values), digits) + suffix if values else ""


def _target(target: Target, labels: Mapping[str, str]) -> str:
    if not target.is_ratio or target.against == KOMBU:
        return str(target)
    return f"{target} vs {labels.get(target.against, target.against)}"


def _spread(values: Sequence[float], digits: int, suffix: str = "") -> str:
    if len(values) < 2:
        return middle(values, digits, suffix)
    least, most = (_number(edge, digits) for edge in (min(values), max(values)))
    return f"{middle(values, digits, suffix)} ({least} to {most})"


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"
