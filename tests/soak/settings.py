"""What a soak is asked to do, and what its verdict allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.settings import CONCURRENCY
from tests.chaos.settings import Settings as Crewed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PREFETCH_MULTIPLIER = 4
"""Of `tests.chaos.app`."""
# Leases, heartbeats and passes as everybody has them: a soak is about hours, not about seconds.
OPTIONS: Mapping[str, Any] = {"visibility_timeout": 60.0}
CONFIG: Mapping[str, Any] = {
    "include": ["tests.soak.tasks"],
    "result_backend": "rpc://",
    "worker_send_task_events": True,
    "event_queue_expires": 5.0,
}


@dataclass(frozen=True)
class Bounds:
    """How much the end of a run may be worse than its begin, before it is a finding."""

    memory: float = 1.10
    """What is held at the end may be so many times what was held halfway."""
    slack_kb: float = 4096.0
    """And so much more: an allocator takes its memory in pieces."""
    keys: float = 1.10
    slack_keys: float = 25.0
    """Temporary queues come and go: at any time some are there."""
    throughput: float = 0.90
    """Tasks a second in the last tenth, at least so many times those in the first."""
    cpu: float = 1.25
    """Processor time for a task in the last tenth, at most so many times that in the first."""


@dataclass(frozen=True)
class Settings:
    """One run. Durations are seconds."""

    directory: Path
    duration_s: float
    seed: int = 1
    rate: float = 60.0
    """Tasks published a second."""
    pools: Sequence[str] = ("prefork", "threads")
    """One worker of each."""
    reconnect_every_s: float = 60.0
    sample_every_s: float = 5.0
    options: Mapping[str, Any] = field(default_factory=lambda: dict(OPTIONS))
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def longest_s(self) -> float:
        """What long tasks take: none is left of before a reconnect when workers are filled.

        What runs when its connection is lost is held beside what the next one may hold.
        """
        return self.reconnect_every_s / 10

    @property
    def limits(self) -> dict[str, int]:
        """What the worker of each pool may hold."""
        return {pool: PREFETCH_MULTIPLIER * CONCURRENCY[pool] for pool in self.pools}

    @property
    def crewed(self) -> Crewed:
        """The same, as the crew of the chaos suite takes it."""
        return Crewed(
            directory=self.directory,
            seed=self.seed,
            duration_s=self.duration_s,
            kinds=(),
            workers=len(self.pools),
            pools=self.pools,
            producers=1,
            rate=self.rate,
            batches=0.0,
            poison_every_s=0.0,
            longest_s=self.longest_s,
            options=self.options,
            config=CONFIG,
        )
