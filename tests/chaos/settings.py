"""What a run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from tests.chaos.model import Limits

# one: a server and its replica, a proxy in front of whichever is in charge.
# two: another broker beside it, to which clients go (`broker_failover_strategy` primary).
# sentinels: a master, two replicas, three Sentinels, and publishes confirmed by a replica.
# embedded: a folder on a slow disk, whose server and keeper are killed.
# cluster: three masters with two replicas each, and publishes confirmed by a replica.
Brokers = Literal["one", "two", "sentinels", "cluster", "embedded"]

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Short, so that minutes show what takes an hour with the defaults.
SHORT: Mapping[str, Any] = {
    "visibility_timeout": 4.0,
    "restore_interval": 0.5,
    # Longer than Celery waits before it connects for the second time (2 s): a worker that
    # is on its way back is not dead.
    "orphan_grace": 3.0,
    "poll_interval": 0.5,
    "socket_timeout": 1.5,
    "socket_connect_timeout": 1.5,
    # A task that takes longer than a lease is killed in every third or fourth run, by chance:
    # so often in a row it is not.
    "delivery_limit": 8,
    "probe_interval": 0.5,
}
KOMBU: Mapping[str, Any] = {"visibility_timeout": 4.0, "socket_timeout": 1.5}
QUEUES = ("chaos", "chaos.second")
# Over a cluster there is another one, in partitions, whose number changes.
DIVIDED = "chaos.divided"
PARTITIONS, MOST_PARTITIONS = 3, 4
# Where the callbacks of batches go, and nothing else: so their messages can be counted.
CALLBACKS = "chaos.callbacks"
POOLS = ("prefork", "threads", "gevent", "solo")
CONCURRENCY = {"prefork": 2, "threads": 4, "gevent": 10, "solo": 1}


@dataclass(frozen=True)
class Settings:
    """One run of the suite. Durations are seconds."""

    directory: Path
    """Of the ledger and the logs; it must exist."""
    seed: int
    duration_s: float
    """How long faults fall; the run takes as long again as the rest needs to settle."""
    kinds: Sequence[str]
    least_tasks: int = 0
    """It goes on until so many publishes are confirmed, however slow the machine is."""
    fault_every_s: float = 4.0
    starve_every_s: float = 0.0
    """Between two `starve`, beside the other faults; 0: none."""
    scheme: str = "reliq"
    workers: int = 4
    pools: Sequence[str] = POOLS
    producers: int = 2
    rate: float = 300.0
    """Publishes a second, by all producers together; 0: as many as they can."""
    batches: float = 0.2
    """The share of them that is published in batches; none at another transport's broker."""
    brokers: Brokers = "one"
    backlog: int = 2000
    """Producers wait while so many confirmed tasks are unfinished."""
    poison_every_s: float = 20.0
    longest_s: float = 6.0
    """What tasks take that are longer than a lease."""
    options: Mapping[str, Any] = field(default_factory=lambda: dict(SHORT))
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """More settings of Celery, for workers and producers."""
    drain_s: float = 60.0
    """The longest that the end waits while nothing moves."""

    @property
    def reliq(self) -> bool:
        """Whether the broker can be inspected: the transport is ours, or a broken one of ours."""
        return self.scheme.startswith("reliq")

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that tasks go to."""
        more = (DIVIDED,) if self.brokers == "cluster" else ()
        return (*QUEUES, *more, *((CALLBACKS,) if self.has_batches else ()))

    @property
    def has_batches(self) -> bool:
        """Whether some of the tasks are published in batches."""
        return bool(self.batches and self.rate) and self.scheme == "reliq"

    @property
    def limits(self) -> Limits:
        """What the checker needs to know of the options."""
        lease = float(self.options["visibility_timeout"])
        return replace(
            Limits(), lease=lease, renewed_every=lease / 3, two_brokers=self.brokers == "two"
        )
