"""Every figure, in the order of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import (
    batches,
    celery_tasks,
    cluster_cpu,
    cluster_idle,
    cluster_moves,
    consume,
    cpu,
    embedded,
    growth,
    idle,
    latency,
    memory,
    publish,
    restore,
    traffic,
    web,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.model import Figure

SECTIONS: dict[str, tuple[Figure, ...]] = {
    "Publish": publish.FIGURES,
    "Publish as web applications do": web.FIGURES,
    "Consume and ack": consume.FIGURES,
    "Celery, end to end": celery_tasks.FIGURES,
    "Batches": batches.FIGURES,
    "Latency": latency.FIGURES,
    "Restore": restore.FIGURES,
    "Growth": growth.FIGURES,
    "Memory and traffic": (*memory.FIGURES, *traffic.FIGURES, *idle.FIGURES),
    "CPU": cpu.FIGURES,
    "Cluster": (*cluster_cpu.FIGURES, *cluster_idle.FIGURES, *cluster_moves.FIGURES),
    "Embedded broker": (*embedded.FIGURES, *web.WITHOUT_A_SERVER),
}
ALL: tuple[Figure, ...] = tuple(figure for figures in SECTIONS.values() for figure in figures)


def order() -> dict[str, list[str]]:
    """Return the keys of the rows of each section, in the order of the tables."""
    return {
        name: [row.key for figure in figures for row in figure.rows]
        for name, figures in SECTIONS.items()
    }


def select(names: Sequence[str], core: bool = False) -> list[Figure]:
    """Return the figures whose name begins with one of *names*; all if there are none.

    `=name` selects only the figure of this name. `core` selects only the most important ones.
    """
    chosen = [figure for figure in ALL if figure.core or not core]
    if not names:
        return chosen
    exact = {name[1:] for name in names if name.startswith("=")}
    begins = tuple(name for name in names if not name.startswith("="))
    return [figure for figure in chosen if figure.name in exact or figure.name.startswith(begins)]
