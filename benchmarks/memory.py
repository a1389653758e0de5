"""Memory that Redis needs for a waiting Celery message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import child
from benchmarks.model import Figure, Row, Target
from benchmarks.worker import memory_of_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.setting import Setting

KEY = "memory"


def measure(setting: Setting) -> Mapping[str, float]:
    """Return the growth of `used_memory` for each waiting no-op message, in bytes."""
    each = child.run(
        memory_of_tasks,
        url=setting.url,
        port=setting.server.port,
        warm_up=setting.size(100),
        count=setting.size(20_000),
    )
    return {KEY: each}


FIGURES = (
    Figure(
        KEY,
        (Row(KEY, "memory per waiting Celery message", "bytes", Target("ratio_at_most", 1)),),
        measure,
        most_rounds=2,
        warm_up=False,
    ),
)
