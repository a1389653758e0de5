"""What the parts of a run tell each other: strikes planned, faults done, tasks' histories."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from reliq.message.queue_names import queue_of

PROMOTION = "promotion"
"""A replica was promoted, and no fault of ours was the cause: a master was slow to answer."""
WENT_BACK = "went-back"
"""A replica was promoted that had less than was confirmed."""

Cause = Literal["death", "freeze", "outage", "exit in an outage"]


class Strike(NamedTuple):
    """One fault of the schedule. The same seed gives the same strikes."""

    at_s: float
    """Seconds after the start of the run."""
    kind: str
    duration_s: float
    """How long until it is undone; 0: there is nothing to undo."""
    chance: float
    """From 0 to 1: chooses the target among what there is."""


@dataclass
class Fault:
    """A strike as it was carried out. Times are CLOCK_MONOTONIC."""

    kind: str
    at: float
    until: float
    """When it was undone; the same as `at` where there was nothing to undo."""
    worker: str = ""
    """Whom it hit; empty: everybody."""
    pid: int = 0
    """The one child that it hit."""
    note: str = ""
    applied: bool = True
    """False: there was nothing to hit, or the broker refused; it counts as nothing."""
    outage: bool = False
    """Whether the broker could not be reached, or did not answer, from `at` to `until`."""
    queues: frozenset[str] = frozenset()
    """Queues and partitions whose node it hit; empty: the broker has one node, and it hit all."""
    served: float = 0.0
    """When another node had the queues, where that was before `until`."""
    master: bool = False
    """Whether what the master had not replicated yet was lost: the last acks, say."""
    died: float = 0.0
    """When that master had answered for the last time, where that was after `at`."""
    cuts: bool = False
    """Whether connections were lost, so that what was under way is sent again later."""
    slows: bool = False
    """Whether everything took longer from `at` to `until`: whoever was cut off comes back later."""
    lifted: float = 0.0
    """When the nemesis had let go: what comes later is the time that recovery took."""

    def __post_init__(self) -> None:
        """Lift it as it strikes, unless it is said otherwise."""
        self.lifted = self.lifted or self.at

    @property
    def back(self) -> float:
        """When the outage was over."""
        return self.served or self.until

    def hit(self, queue: str) -> bool:
        """Whether it hit the node of *queue*, or of one of its partitions."""
        return not self.queues or queue in map(queue_of, self.queues)


@dataclass(frozen=True)
class Exit:
    """A worker that ended in good order: asked at, gone at."""

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
    """When it was done, or its retry was published; None: it never was."""
    retried: bool = False
    queue: str = ""
    """Of its message; a retry goes where the task itself went."""
    ended: str = ""
    """How: an event of the ledger."""


@dataclass(slots=True)
class History:
    """All that happened to one task."""

    id: str
    intent: float | None = None
    countdown: float = 0.0
    queue: str = ""
    confirmed: float | None = None
    failed: str = ""
    batch: str = ""
    """The batch whose job it is."""
    unsent: bool = False
    """Whether its publish was refused."""
    runs: list[Run] = field(default_factory=list)

    @property
    def finishes(self) -> list[Run]:
        """The runs that were done, and not to be tried again."""
        return [run for run in self.runs if run.finish is not None and not run.retried]


@dataclass(frozen=True)
class Limits:
    """What the checker must know of the settings, in seconds."""

    lease: float = 4.0
    renewed_every: float = 4.0 / 3
    reconnect: float = 3.0
    """The longest a client takes to come back after an outage: Celery waits 2 s at first."""
    in_flight: float = 1.0
    """The longest that an ack is under way while the broker answers."""
    hold: float = 15.0
    """The longest that a message waits in a worker for those taken with it."""
    two_brokers: bool = False
    """Whether a publish that is retried may go to another broker than the first try did."""
    early: float = 0.1
    """How much earlier than its countdown a task may start: clocks are rounded."""
