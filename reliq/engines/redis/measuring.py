"""Metrics over Redis: one script for each queue, all of them in one round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...store import Measure, QueueStatus
from ...tags import published_ms
from . import scripts
from .base import BATCH, StoreBase, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .scripts import Script
    from .wire import Command


class RedisMeasuring(StoreBase):
    """What a store tells a collector of metrics."""

    def measure(self, queues: Sequence[str]) -> list[Measure]:
        """Return what there is of *queues*, each at one instant; none for one that is gone."""
        found = []
        for start in range(0, len(queues), BATCH):
            names = queues[start : start + BATCH]
            replies = self._wire.exchange([self._measure_command(queue) for queue in names])
            found += [
                _measure(queue, *reply[1:])
                for queue, reply in zip(names, replies, strict=True)
                if reply[0]
            ]
        return found

    def _measure_command(self, queue: str) -> tuple[Command, Script]:
        names = self._counted(queue)
        return ("EVALSHA", scripts.MEASURE.sha, len(names), *names), scripts.MEASURE


def _measure(  # the reply, part by part
    queue: str,
    ready: int,
    delayed: int,
    unacked: int,
    dead: int,
    stored: int,
    consumers: int,
    stats: list[bytes],
    arguments: bytes,
    paused: int,
    now_ms: int,
    due: int,
    ranks: list[Any],
) -> Measure:
    ledger = dict(zip(texts(stats[::2]), map(int, stats[1::2]), strict=True))
    status = QueueStatus(
        queue,
        ready,
        delayed,
        unacked,
        dead,
        stored,
        consumers,
        ledger,
        {"": arguments},
        paused == 1,
    )
    by_rank = dict(zip(ranks[::3], ranks[1::3], strict=True))
    oldest = min((published_ms(tag.decode()) for tag in ranks[2::3]), default=None)
    return Measure(status, now_ms, by_rank, oldest, due)
