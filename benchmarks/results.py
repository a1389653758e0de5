"""A finished run and its JSON file, from which all output is made."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.model import Outcome, Row, Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Run:
    """The options and surroundings of a run, and its outcomes by section, in order."""

    command: str
    rounds: int
    scale: float
    labels: Mapping[str, str]
    surroundings: Mapping[str, str]
    left_out: Sequence[str]
    failures: Sequence[str]
    sections: Mapping[str, Sequence[Outcome]]
    commit: str = "not known"
    """The commit of all figures: a run is only resumed at the same commit."""

    @property
    def outcomes(self) -> list[Outcome]:
        """Every outcome, in the order of the tables."""
        return [outcome for outcomes in self.sections.values() for outcome in outcomes]


def write(run: Run, path: Path) -> None:
    """Write every sample and the surroundings of the run."""
    content = {
        "command": run.command,
        "rounds": run.rounds,
        "scale": run.scale,
        "labels": dict(run.labels),
        "surroundings": dict(run.surroundings),
        "left_out": list(run.left_out),
        "failures": list(run.failures),
        "commit": run.commit,
        "sections": {
            name: [_as_json(outcome) for outcome in outcomes]
            for name, outcomes in run.sections.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merge(earlier: Run, new: Run, order: Mapping[str, Sequence[str]]) -> Run:
    """Return an interrupted run with the later measurements.

    *order* has the keys of every section's rows. New surroundings are added only if the earlier run
    did not have them, such as another server.
    """
    found = {outcome.row.key: outcome for outcome in (*earlier.outcomes, *new.outcomes)}
    sections = {
        name: [found[key] for key in keys if key in found]
        for name, keys in order.items()
        if any(key in found for key in keys)
    }
    return replace(
        earlier,
        labels={**earlier.labels, **new.labels},
        surroundings={**new.surroundings, **earlier.surroundings},
        left_out=list(dict.fromkeys([*earlier.left_out, *new.left_out])),
        failures=[*earlier.failures, *new.failures],
        sections=sections,
    )


def read(path: Path) -> Run:
    """Return the run stored in a file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop("later", None)  # from runs that mixed commits
    sections = {
        name: [_from_json(outcome) for outcome in outcomes]
        for name, outcomes in content.pop("sections").items()
    }
    return Run(sections=sections, **content)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    row = outcome.row
    others = list(outcome.samples)[1:]
    return {
        "key": row.key,
        "title": row.title,
        "unit": row.unit,
        "digits": row.digits,
        "targets": [asdict(target) for target in row.targets],
        "passed": outcome.passed,
        "medians": {name: median(taken) for name, taken in outcome.samples.items()},
        "ratios": {name: median(outcome.ratios(name)) for name in others},
        "samples": {name: list(taken) for name, taken in outcome.samples.items()},
    }


def _from_json(content: Mapping[str, Any]) -> Outcome:
    targets = tuple(Target(**target) for target in content["targets"])
    row = Row(content["key"], content["title"], content["unit"], targets, content["digits"])
    return Outcome(row, content["samples"])
