"""Redis memory of a Celery message that waits, and of one that is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import child
from benchmarks.model import Figure, Row, Target
from benchmarks.restore import reserve_all
from benchmarks.worker import memory_of_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.setting import Setting

WAITING, HELD = "memory-waiting", "memory-held"
MESSAGES = 20_000
LEASE_S = 60.0


def measure(setting: Setting) -> Mapping[str, float]:
    """Return the growth of `used_memory` in bytes per no-op message."""
    warm_up, count = setting.size(100), setting.paced(MESSAGES)
    before, added = child.run(
        memory_of_tasks,
        broker=setting.broker,
        port=setting.redis.port,
        warm_up=warm_up,
        count=count,
    )
    each = added / count
    holder = child.start(
        reserve_all,
        broker=setting.broker,
        visibility_timeout=LEASE_S,
        count=warm_up + count,
        name="celery",
    )
    try:
        child.wait_for_line(holder)
        # Messages of the warm-up existed before: each counts with the average of the others.
        held = (setting.redis.used_memory() - before) / (warm_up + count)
        held += each * warm_up / (warm_up + count)
    finally:
        child.stop(holder)
    return {WAITING: each, HELD: held}


FIGURES = (
    Figure(
        "memory",
        (
            Row(
                WAITING,
                "memory per waiting Celery message",
                "bytes",
                (Target("ratio_at_most", 1),),
            ),
            Row(HELD, "memory per held Celery message", "bytes"),
        ),
        measure,
        most_rounds=1,
        warm_up=False,
        core=True,
    ),
)
