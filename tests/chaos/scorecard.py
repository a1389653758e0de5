"""The scorecard of a run: on the screen, as JSON, and as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tests.chaos.faults import FAULTS
from tests.chaos.model import WENT_BACK
from tests.chaos.recovery import percentiles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.chaos.run import Outcome

_SHOWN = 100


def summary(outcome: Outcome, command: str, surroundings: Mapping[str, str]) -> dict[str, Any]:
    """Return all data of the scorecard, ready for JSON."""
    verdict, settings = outcome.verdict, outcome.settings
    struck = Counter(fault.kind for fault in outcome.faults if fault.applied)
    missed = Counter(fault.kind for fault in outcome.faults if not fault.applied)
    return {
        "passed": verdict.passed,
        "command": command,
        "seed": settings.seed,
        "scheme": settings.scheme,
        "minutes_of_faults": round((outcome.stopped - outcome.began) / 60, 2),
        "workers": settings.workers,
        "pools": list(settings.pools),
        "options": dict(settings.options),
        "surroundings": dict(surroundings),
        "tasks": {
            "confirmed": verdict.tasks,
            "unconfirmed": verdict.unconfirmed,
            "runs": verdict.runs,
            "by_kind": dict(verdict.by_kind),
            "a_second": round(outcome.rate, 1),
        },
        "lost": len(verdict.lost),
        "lost_ids": verdict.lost[:_SHOWN],
        "lost_by": dict(verdict.lost_by),
        "duplicates": {
            "total": verdict.duplicates.total(),
            "by_cause": dict(verdict.duplicates),
        },
        "faults": {
            "total": struck.total(),
            "kinds": len(struck),
            "by_kind": dict(sorted(struck.items())),
            "had_nothing_to_hit": dict(missed),
        },
        "limits": {
            "runs": outcome.overlaps.runs,
            "highest_overlap": outcome.overlaps.highest,
            "overlaps_by_faults": outcome.overlaps.explained,
            "killed_after_an_early_ack": verdict.interrupted,
        },
        "poison": {
            "confirmed": len(verdict.poison),
            "in_the_dead_letters": outcome.dead,
            "innocent_by": dict(verdict.dead_by),
            "workers_it_killed": outcome.poison_deaths,
            "times_run": {str(k): v for k, v in sorted(verdict.poison_runs.items())},
        },
        "batches": {
            "of_them": dict(outcome.batches.batches),
            "jobs": dict(outcome.batches.jobs),
            "callbacks": dict(outcome.batches.callbacks),
            "excused": dict(outcome.batches.excused),
        },
        "recovery_s": {
            kind: {"samples": len(samples), **percentiles(samples)}
            for kind, samples in sorted(outcome.recovery.items())
        },
        "audit": outcome.audit,
        "findings": verdict.findings[:_SHOWN],
        "more_findings": max(0, len(verdict.findings) - _SHOWN),
        "schedule": [
            {
                "kind": fault.kind,
                "at_s": round(fault.at - outcome.began, 2),
                "until_s": round(fault.until - outcome.began, 2),
                "worker": fault.worker,
                "note": fault.note,
                "applied": fault.applied,
            }
            for fault in outcome.faults
        ],
        "processor_s_by_minute": outcome.processor,
        "finished_a_second": [
            outcome.finishes.get(second, 0)
            for second in range(int(outcome.settled - outcome.began))
        ],
    }


def write_json(card: Mapping[str, Any], path: Path) -> None:
    """Write the complete scorecard as JSON."""
    path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def _facts(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    tasks, faults, poison = card["tasks"], card["faults"], card["poison"]
    causes = ", ".join(
        f"{number} {cause}" for cause, number in sorted(card["duplicates"]["by_cause"].items())
    )
    return [
        ("verdict", "passed" if card["passed"] else "FAILED"),
        ("seed", str(card["seed"])),
        ("commit", card["surroundings"].get("commit", "not known")),
        ("duration of the faults", f"{card['minutes_of_faults']:g} minutes"),
        ("confirmed tasks", f"{tasks['confirmed']:,} ({tasks['a_second']:,.0f} a second)"),
        (
            "kinds of tasks",
            ", ".join(f"{n:,} {kind}" for kind, n in sorted(tasks["by_kind"].items())),
        ),
        ("failed publishes", f"{tasks['unconfirmed']:,}"),
        ("faults", f"{faults['total']} of {faults['kinds']} kinds"),
        ("lost", _lost(card)),
        (
            "runs beyond the first",
            f"{card['duplicates']['total']}" + (f" ({causes})" if causes else ""),
        ),
        ("queue with limits", _limits(card.get("limits"))),
        (
            "poison",
            (
                f"{poison['confirmed']} tasks; killed {poison['workers_it_killed']} workers; "
                f"dead letters: {poison['in_the_dead_letters']}"
                + "".join(
                    f", {n} of other tasks, whose last delivery a {kind} ended"
                    for kind, n in poison["innocent_by"].items()
                )
            ),
        ),
        ("batches", _batches(card["batches"])),
        ("audited ledgers", str(len(card["audit"]))),
        ("findings", str(len(card["findings"]) + card["more_findings"])),
    ]


def _limits(limits: dict[str, int] | None) -> str:
    if not limits or not limits["runs"]:
        return "none"
    return (
        f"{limits['runs']:,} runs, at most {limits['highest_overlap']} at once; "
        f"{limits['overlaps_by_faults']} starts above the limit by faults; "
        f"{limits['killed_after_an_early_ack']} tasks killed after an early ack"
    )


def _lost(card: Mapping[str, Any]) -> str:
    """Return the number of lost tasks, and of those lost by each promotion that went back."""
    causes = [
        f"{card['lost_by'].get(fault['note'], 0)} by a promotion: {fault['note']}"
        for fault in card["schedule"]
        if fault["kind"] == WENT_BACK
    ]
    return "; ".join([str(card["lost"]), *causes])


def _batches(found: Mapping[str, Mapping[str, int]]) -> str:
    batches, jobs = dict(found["of_them"]), found["jobs"]
    if not batches:
        return "none"
    number = batches.pop("all")
    parts = [f"{number:,} ({_listed(batches)})", f"{sum(jobs.values()):,} jobs ({_listed(jobs)})"]
    parts.append(f"callbacks: {_listed(found['callbacks'])}")
    if found["excused"]:
        parts.append(f"jobs whose state differs from their runs: {_listed(found['excused'])}")
    return "; ".join(parts)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items()))


def _rows(card: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for kind in sorted(set(card["faults"]["by_kind"]) | set(card["recovery_s"])):
        times = card["recovery_s"].get(kind, {})
        cells = [f"{times[name]:.2f}" if name in times else "-" for name in _TIMES]
        number = str(card["faults"]["by_kind"].get(kind, 0))
        duplicates = str(card["duplicates"]["by_cause"].get(kind, 0))
        rows.append((kind, number, duplicates, str(times.get("samples", 0)), *cells))
    return rows


_TIMES = ("p50", "p95", "p99", "max")
_HEADER = ("fault", "number", "duplicates", "samples", *_TIMES)


def tables(card: Mapping[str, Any]) -> list[Table]:
    """Return the scorecard for the screen."""
    facts = Table(title="Scorecard", show_header=False)
    for name, value in _facts(card):
        bad = value == "FAILED" or (name in {"lost", "findings"} and value != "0")
        facts.add_row(name, value, style="red" if bad else "")
    times = Table(*_HEADER, title="Faults and recovery times (seconds)")
    for row in _rows(card):
        times.add_row(*row)
    return [facts, times]


def write_markdown(card: Mapping[str, Any], path: Path) -> None:
    """Write the scorecard as a self-contained page, ready to be published."""
    parts = [f"# A run of the chaos suite\n\n```\n{card['command']}\n```\n"]
    parts.append("| | |\n| --- | --- |")
    parts += [f"| {name} | {value} |" for name, value in _facts(card)]
    parts.append("\n## Faults and recovery times (seconds)\n")
    parts.append("| " + " | ".join(_HEADER) + " |\n" + "| --- " * len(_HEADER) + "|")
    parts += ["| " + " | ".join(row) + " |" for row in _rows(card)]
    parts.append("\n| fault | effect |\n| --- | --- |")
    parts += [f"| {k} | {FAULTS[k].about} |" for k in sorted(card["faults"]["by_kind"])]
    parts.append("\n## Findings\n")
    parts += [f"- {finding}" for finding in card["findings"]] or ["None."]
    parts.append("\n## Machine and versions\n")
    where = card["surroundings"].items()
    parts += [f"- {name}: {value}" for name, value in where if name != "commit"]
    options = ", ".join(f"{name} {value:g}" for name, value in card["options"].items())
    parts.append(f"- options: {options}")
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
