"""Figures, targets and outcomes as values. Knows nothing of Redis, Kombu or printing."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.setting import Setting

BASELINE = "kombu"


@dataclass(frozen=True)
class Target:
    """The target of a row: a ratio to the peer `against`, or an absolute value."""

    kind: Literal["ratio_at_least", "ratio_at_most", "value_at_most", "value_at_least"]
    value: float
    unit: str = "x"
    against: str = BASELINE

    @property
    def is_ratio(self) -> bool:
        """Whether the verdict needs a peer."""
        return self.kind.startswith("ratio")

    def met(self, value: float, ratio: float) -> bool:
        """Return whether the measured value and its ratio to the peer reach the target."""
        measured = ratio if self.is_ratio else value
        return measured >= self.value if self.kind.endswith("least") else measured <= self.value

    def __str__(self) -> str:
        """Return the target in the format of the tables."""
        sign = ">=" if self.kind.endswith("least") else "<="
        return f"{sign} {self.value:g}{'' if self.unit in {'x', '%'} else ' '}{self.unit}"


@dataclass(frozen=True)
class Row:
    """One line of the tables."""

    key: str
    title: str
    unit: str
    targets: tuple[Target, ...] = ()
    digits: int = 0


@dataclass(frozen=True)
class Figure:
    """One measurement, which yields a value for each or for some of its rows.

    `peers` are measured in turn, reliq's first. `most_rounds` limits the rounds of a figure that
    varies little or takes long. `warm_up` adds a small first round that is discarded. `core` marks
    the figures of `--core`.
    """

    name: str
    rows: tuple[Row, ...]
    measure: Callable[[Setting], Mapping[str, float]]
    peers: tuple[str, ...] = ("reliq", BASELINE)
    most_rounds: int | None = None
    warm_up: bool = True
    core: bool = False


@dataclass(frozen=True)
class Outcome:
    """The samples of one row by peer, reliq's first; equal indexes are of one round."""

    row: Row
    samples: Mapping[str, Sequence[float]]

    @property
    def ours(self) -> Sequence[float]:
        """The samples of reliq."""
        return next(iter(self.samples.values()))

    def ratios(self, against: str) -> list[float]:
        """Return reliq's samples divided by the peer's, by round; none if it was not measured."""
        pairs = zip(self.ours, self.samples.get(against, ()), strict=False)
        return [mine / theirs if theirs else float("inf") for mine, theirs in pairs]

    def verdicts(self) -> list[tuple[Target, bool]]:
        """Return each target with enough data, and whether the medians reach it."""
        judged = []
        for target in self.row.targets:
            ratios = self.ratios(target.against)
            if target.is_ratio and not ratios:
                continue
            judged.append((target, target.met(median(self.ours), median(ratios or [0]))))
        return judged

    @property
    def passed(self) -> bool:
        """Whether no target with enough data is missed."""
        return all(met for _, met in self.verdicts())
