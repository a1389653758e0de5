"""The settings of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from tests.chaos.model import Limits

# one: a server and its replica, and a proxy in front of the current master.
# two: also another broker, to which clients switch (`broker_failover_strategy` primary).
# sentinels: a master, two replicas, three Sentinels, and publishes confirmed by a replica.
# embedded: a folder on a slow disk, whose server and keeper are killed.
# logins: a server whose logins end; children of prefork are replaced after few tasks, and all
# processes also publish in a signal handler.
# cluster: three masters with two replicas each, and publishes confirmed by a replica.
Brokers = Literal["one", "two", "sentinels", "cluster", "embedded", "logins"]

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Short times, so that minutes correspond to an hour with the defaults.
SHORT: Mapping[str, Any] = {
    "visibility_timeout": 4.0,
    "restore_interval": 0.5,
    # Longer than Celery's pause before its second attempt to connect (2 s): a worker that is
    # reconnecting is not dead.
    "orphan_grace": 3.0,
    "poll_interval": 0.5,
    "socket_timeout": 1.5,
    "socket_connect_timeout": 1.5,
    # A task longer than a lease is killed by chance in every third or fourth run. It does not reach
    # this limit by chance.
    "delivery_limit": 8,
    "probe_interval": 0.5,
}
KOMBU: Mapping[str, Any] = {"visibility_timeout": 4.0, "socket_timeout": 1.5}
QUEUES = ("chaos", "chaos.second")
# Only for a cluster: a queue with partitions, whose number changes.
DIVIDED = "chaos.divided"
PARTITIONS, MOST_PARTITIONS = 3, 4
# A queue with x-concurrency, which changes. Not for two brokers, which count slots separately.
LIMITED = "chaos.limited"
LIMIT, LIMITS = 3, (1, 2, 3, 5)
# A queue for callbacks of batches only, so that their messages can be counted.
CALLBACKS = "chaos.callbacks"
POOLS = ("prefork", "threads", "gevent", "solo")
CONCURRENCY = {"prefork": 2, "threads": 4, "gevent": 10, "solo": 1}


@dataclass(frozen=True)
class Settings:
    """One run of the suite. Durations are seconds."""

    directory: Path
    """The directory of the ledger and the logs, which must exist."""
    seed: int
    duration_s: float
    """Duration of the faults; the run then takes as long as it needs to settle."""
    kinds: Sequence[str]
    least_tasks: int = 0
    """The run continues until this many publishes are confirmed, however slow the machine is."""
    fault_every_s: float = 4.0
    starve_every_s: float = 0.0
    """Average seconds between `starve` faults, in addition to the others; 0: none."""
    scheme: str = "reliq"
    workers: int = 4
    pools: Sequence[str] = POOLS
    producers: int = 2
    rate: float = 300.0
    """Publishes per second of all producers together; 0: no limit."""
    batches: float = 0.2
    """The share of publishes in batches; none with another transport."""
    limited: float = 8.0
    """Publishes per second to a queue with limits, which fill it; none with another transport."""
    brokers: Brokers = "one"
    backlog: int = 2000
    """Producers wait while this many confirmed tasks are unfinished."""
    poison_every_s: float = 20.0
    longest_s: float = 6.0
    """Duration of tasks that are longer than a lease."""
    options: Mapping[str, Any] = field(default_factory=lambda: dict(SHORT))
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """Further Celery settings for workers and producers."""
    drain_s: float = 60.0
    """The end waits at most this long without any progress."""

    @property
    def reliq(self) -> bool:
        """Whether the broker can be inspected: a reliq transport, possibly a broken one."""
        return self.scheme.startswith("reliq")

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of tasks."""
        more = (DIVIDED,) if self.brokers == "cluster" else ()
        limited = (LIMITED,) if self.has_limits else ()
        return (*QUEUES, *more, *limited, *((CALLBACKS,) if self.has_batches else ()))

    @property
    def has_limits(self) -> bool:
        """Whether there is a queue with limits."""
        return self.scheme == "reliq" and self.brokers != "two" and bool(self.limited)

    @property
    def has_batches(self) -> bool:
        """Whether some of the tasks are published in batches."""
        return bool(self.batches and self.rate) and self.scheme == "reliq"

    @property
    def limits(self) -> Limits:
        """The settings for the checker."""
        lease = float(self.options["visibility_timeout"])
        return replace(
            Limits(), lease=lease, renewed_every=lease / 3, two_brokers=self.brokers == "two"
        )
