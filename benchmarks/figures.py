"""Every figure, in the order of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import celery_tasks, consume, idle, memory, publish, restore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.model import Figure

ALL: tuple[Figure, ...] = (
    *publish.FIGURES,
    *consume.FIGURES,
    *celery_tasks.FIGURES,
    *restore.FIGURES,
    *idle.FIGURES,
    *memory.FIGURES,
)


def select(names: Sequence[str]) -> list[Figure]:
    """Return the figures whose name is, or begins with, one of the names; all for no name."""
    if not names:
        return list(ALL)
    return [figure for figure in ALL if figure.name.startswith(tuple(names))]
