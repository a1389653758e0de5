"""Batches, their jobs and failures, as an operator sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..store.jobs import ENDED, STATES
from ..transfer.batch_callbacks import FIELD

if TYPE_CHECKING:
    from ..store.jobs import BatchRecord, Job

Stage: TypeAlias = Literal["open", "sealed", "ended"]


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """What an operator wants to know of one batch, at one instant.

    Times are the broker's, in ms since the epoch; None: not yet.
    """

    id: str
    name: str
    stage: Stage
    counts: dict[str, int]
    """How many jobs are in each state."""
    total: int
    done: int
    """How many have ended, however."""
    percent: float
    created_ms: int
    sealed_ms: int | None
    cancelled_ms: int | None
    ended_ms: int | None
    age_s: float
    """Since it was opened."""
    due: list[str]
    """Its callbacks that are to be published: success, complete, failure."""
    published: list[str]
    """Those that were; without those that it has not."""

    @property
    def bad(self) -> int:
        """How many jobs failed, or ended in error."""
        return self.counts["failed"] + self.counts["error"]


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What is known of one job."""

    id: str
    """The id of the Celery task."""
    state: str
    retries: int
    """Which try of the task it is: 0 is the first."""
    since_ms: int
    """Since when it is in this state, by the broker's clock."""
    since_s: float
    queue: str
    """Where its message is, or was; "" of one that has succeeded."""
    tag: str
    """Its delivery tag there."""
    worker: str
    """Who works on it, where it is working."""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A job that failed, or ended in error."""

    job: str
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class BatchesUntold:
    """Batches that cannot be read: a server of several does not answer, a key is another's."""

    batches: tuple[str, ...]
    error: str
    """Which node, and why, in one line."""

    def __str__(self) -> str:
        """Say it to an operator."""
        names = ", ".join(map(repr, self.batches)) or "which there are is not known"
        return f"{self.error}; batches not told: {names}"


def stage_of(record: BatchRecord) -> Stage:
    """Return where a batch is in its life."""
    if record.ended_ms:
        return "ended"
    return "sealed" if record.sealed_ms else "open"


def info_of(record: BatchRecord, now_ms: int) -> BatchInfo:
    """Return what an operator is told of *record*."""
    done = sum(record.counts[state] for state in ENDED)
    percent = 100.0 if record.ended_ms else round(100 * done / max(record.total, 1), 1)
    return BatchInfo(
        record.id,
        record.name,
        stage_of(record),
        {state: record.counts[state] for state in STATES},
        record.total,
        done,
        percent,
        record.created_ms,
        record.sealed_ms or None,
        record.cancelled_ms or None,
        record.ended_ms or None,
        max(now_ms - record.created_ms, 0) / 1000,
        list(record.due),
        [name for name in record.said if FIELD + name in record.fields],
    )


def job_of(job: Job, now_ms: int) -> JobInfo:
    """Return what an operator is told of *job*."""
    return JobInfo(
        job.id,
        job.state,
        job.retries,
        job.since_ms,
        max(now_ms - job.since_ms, 0) / 1000,
        job.queue,
        job.tag,
        job.worker,
    )
