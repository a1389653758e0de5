"""The values that the parts of a run exchange: strikes, faults, histories of tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from reliq.message.queue_names import queue_of

PROMOTION = "promotion"
"""A replica was promoted without a fault of the suite: a master was slow to respond."""
WENT_BACK = "went-back"
"""A replica was promoted that lacked confirmed data."""

Cause = Literal["death", "freeze", "outage", "exit in an outage"]


class Strike(NamedTuple):
    """One planned fault of the schedule. The same seed gives the same strikes."""

    at_s: float
    """Seconds after the start of the run."""
    kind: str
    duration_s: float
    """Seconds until it is undone; 0: it need not be undone."""
    chance: float
    """From 0 to 1: selects the target among those available."""


@dataclass
class Fault:
    """A strike as applied. Times are CLOCK_MONOTONIC."""

    kind: str
    at: float
    until: float
    """When it was undone; equal to `at` if it need not be undone."""
    worker: str = ""
    """The worker that it hit; empty: all."""
    pid: int = 0
    """The child that it hit."""
    note: str = ""
    applied: bool = True
    """False: it had no target, or the broker refused; it has no effect."""
    outage: bool = False
    """Whether the broker was unreachable or did not respond from `at` to `until`."""
    queues: frozenset[str] = frozenset()
    """Queues and partitions of the node that it hit; empty: it hit the whole broker."""
    served: float = 0.0
    """When another node had the queues, if that was before `until`."""
    master: bool = False
    """Whether data that the master had not replicated was lost, such as the last acks."""
    died: float = 0.0
    """When that master last responded, if that was after `at`."""
    cuts: bool = False
    """Whether connections were lost, so that pending commands are sent again later."""
    slows: float = 0.0
    """The delay of each chunk of data from `at` to `until`, in seconds; it slows reconnects too."""
    limit: int = 0
    """The limit that it set, which is in force from some time between `at` and `until`."""
    lifted: float = 0.0
    """When the nemesis had lifted it. Recovery counts from then."""

    def __post_init__(self) -> None:
        """Set `lifted` to the time of the strike by default."""
        self.lifted = self.lifted or self.at

    @property
    def back(self) -> float:
        """The end of the outage."""
        return self.served or self.until

    def hit(self, queue: str) -> bool:
        """Whether it hit the node of *queue*, or of one of its partitions."""
        return not self.queues or queue in map(queue_of, self.queues)


@dataclass(frozen=True)
class Exit:
    """A worker that ended in an orderly way: times of request and end."""

    worker: str
    asked: float
    gone: float


@dataclass(slots=True)
class Run:
    """One run of one message."""

    id: str
    retries: int
    tag: str
    attempt: int
    worker: str
    pid: int
    start: float
    finish: float | None = None
    """When it was done, or its retry was published; None: never."""
    retried: bool = False
    queue: str = ""
    """The queue of its message; a retry goes to the queue of the task."""
    ended: str = ""
    """The event of the ledger that ended it."""


@dataclass(slots=True)
class History:
    """The complete history of one task."""

    id: str
    intent: float | None = None
    countdown: float = 0.0
    queue: str = ""
    confirmed: float | None = None
    failed: str = ""
    batch: str = ""
    """The batch of the job."""
    unsent: bool = False
    """Whether its publish was refused."""
    runs: list[Run] = field(default_factory=list)

    @property
    def finishes(self) -> list[Run]:
        """The finished runs without a retry."""
        return [run for run in self.runs if run.finish is not None and not run.retried]

    @property
    def last_run(self) -> Run | None:
        """The run that started last; None without a run."""
        return max(self.runs, key=lambda run: run.start, default=None)


@dataclass(frozen=True)
class Limits:
    """The settings for the checker, in seconds."""

    lease: float = 4.0
    renewed_every: float = 4.0 / 3
    reconnect: float = 3.0
    """Longest time for a client to reconnect after an outage: Celery waits 2 s at first."""
    in_flight: float = 1.0
    """Longest transit of an ack while the broker responds and the network is not slowed."""
    waits: int = 9
    """Most round trips of a background duty, which may precede the ack on an event loop
    (tests/integration/consuming/test_orphans.py)."""
    hold: float = 15.0
    """Longest wait of a message in a worker for those reserved with it."""
    two_brokers: bool = False
    """Whether a retried publish may go to another broker than the first try."""
    early: float = 0.1
    """How much earlier than its countdown a task may start, as clocks are rounded."""
