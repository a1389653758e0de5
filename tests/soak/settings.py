"""The settings of a soak, and the bounds of its verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.settings import CONCURRENCY
from tests.chaos.settings import Settings as Crewed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PREFETCH_MULTIPLIER = 4
"""That of `tests.chaos.app`."""
# Leases, heartbeats and passes have their usual lengths, because a soak takes hours, not seconds.
OPTIONS: Mapping[str, Any] = {"visibility_timeout": 60.0}
CONFIG: Mapping[str, Any] = {
    "include": ["tests.soak.tasks"],
    "result_backend": "rpc://",
    "worker_send_task_events": True,
    "event_queue_expires": 5.0,
}


@dataclass(frozen=True)
class Bounds:
    """The bounds beyond which the end of a run counts as worse than its beginning."""

    memory: float = 1.10
    """Memory at the end, at most this multiple of the memory halfway."""
    slack_kb: float = 4096.0
    """Allowed growth beyond that, because an allocator takes its memory in pieces."""
    keys: float = 1.10
    slack_keys: float = 25.0
    """Allowed number of temporary queues, some of which exist at any time."""
    throughput: float = 0.90
    """Tasks per second in the last tenth, at least this multiple of those in the first."""
    cpu: float = 1.25
    """Processor time per task in the last tenth, at most this multiple of that in the first."""


@dataclass(frozen=True)
class Settings:
    """One run; durations are in seconds."""

    directory: Path
    duration_s: float
    seed: int = 1
    rate: float = 60.0
    """Tasks published per second."""
    pools: Sequence[str] = ("prefork", "threads")
    """One worker runs for each pool."""
    idle: int = 0
    """Workers with the solo pool that run no task, and read the heartbeats of all others."""
    reconnect_every_s: float = 60.0
    sample_every_s: float = 5.0
    options: Mapping[str, Any] = field(default_factory=lambda: dict(OPTIONS))
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def longest_s(self) -> float:
        """Duration of long tasks: those begun before a reconnect end before the next probe.

        A task that runs when its connection is lost does not count towards the limit of the next
        connection.
        """
        return self.reconnect_every_s / 10

    @property
    def limits(self) -> dict[str, int]:
        """The maximum of messages that the worker of each pool may hold."""
        return {pool: PREFETCH_MULTIPLIER * CONCURRENCY[pool] for pool in self.pools}

    @property
    def crewed(self) -> Crewed:
        """The same settings for the crew of the chaos suite."""
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
