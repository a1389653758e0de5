"""What a figure, its target and its outcome are. Knows nothing of Redis, Kombu or printing."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.setting import Setting


@dataclass(frozen=True)
class Target:
    """What a row must reach: a ratio to the baseline, or a value of its own."""

    kind: Literal["ratio_at_least", "ratio_at_most", "value_at_most"]
    value: float
    unit: str = "x"

    def met(self, value: float, ratio: float) -> bool:
        """Tell whether the measured value and its ratio to the baseline reach the target."""
        if self.kind == "ratio_at_least":
            return ratio >= self.value
        if self.kind == "ratio_at_most":
            return ratio <= self.value
        return value <= self.value

    def __str__(self) -> str:
        """Return the target as the tables print it."""
        sign = ">=" if self.kind == "ratio_at_least" else "<="
        return f"{sign} {self.value:g}{'' if self.unit == 'x' else ' '}{self.unit}"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    key: str
    title: str
    unit: str
    target: Target
    digits: int = 0


@dataclass(frozen=True)
class Figure:
    """One measurement, which yields one value for each of its rows.

    `most_rounds` bounds the rounds of a figure that hardly varies and takes long.
    `warm_up` asks for one small pair before the rounds that is thrown away.
    """

    name: str
    rows: tuple[Row, ...]
    measure: Callable[[Setting], Mapping[str, float]]
    most_rounds: int | None = None
    warm_up: bool = True


@dataclass(frozen=True)
class Outcome:
    """The samples of one row, in the order measured: `ours[i]` and `baseline[i]` are one pair."""

    row: Row
    ours: Sequence[float]
    baseline: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """Ours divided by the baseline, pair by pair."""
        pairs = zip(self.ours, self.baseline, strict=True)
        return [mine / theirs if theirs else float("inf") for mine, theirs in pairs]

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return median(self.ratios)

    @property
    def passed(self) -> bool:
        """Whether the medians reach the row's target."""
        return self.row.target.met(median(self.ours), self.ratio)
