"""A batch and its jobs for display: one model for producers, operators and the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .jobs import CALLBACK_FIELD, ENDED, OPEN, STATES, Stage

if TYPE_CHECKING:
    from typing_extensions import Self

    from .jobs import BatchRecord, Job


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """One batch at one instant. Times are ms since the epoch, by the broker's clock."""

    id: str
    name: str
    stage: Stage
    counts: dict[str, int]
    """The number of jobs in each state."""
    total: int
    done: int
    """The number of ended jobs, in any state."""
    percent: float
    """The percentage of ended jobs; 100 if the batch has ended."""
    created_ms: int
    sealed_ms: int | None
    """None: not yet, as for the following times."""
    cancelled_ms: int | None
    ended_ms: int | None
    """When the last job of the sealed batch ended."""
    age_s: float
    """The time since the batch was opened."""
    due: list[str]
    """The pending callbacks: success, complete, failure."""
    published: list[str]
    """The published callbacks."""

    @classmethod
    def of(cls, record: BatchRecord, now_ms: int, **more: Any) -> Self:
        """Return the view of *record*, with the fields *more* of a subclass."""
        done, total = sum(record.counts[state] for state in ENDED), record.total
        return cls(
            id=record.id,
            name=record.name,
            stage=record.stage,
            counts={state: record.counts[state] for state in STATES},
            total=total,
            done=done,
            percent=100.0 if record.ended_ms else round(100 * done / max(total, 1), 1),
            created_ms=record.created_ms,
            sealed_ms=record.sealed_ms or None,
            cancelled_ms=record.cancelled_ms or None,
            ended_ms=record.ended_ms or None,
            age_s=max(now_ms - record.created_ms, 0) / 1000,
            due=list(record.due),
            published=[name for name in record.published if CALLBACK_FIELD + name in record.fields],
            **more,
        )

    @property
    def open(self) -> int:
        """The number of jobs that have not ended."""
        return sum(self.counts[state] for state in OPEN)

    @property
    def bad(self) -> int:
        """The number of jobs that failed or ended in error."""
        return self.counts["failed"] + self.counts["error"]


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One job."""

    id: str
    """The id of the Celery task."""
    state: str
    retries: int
    """The number of the try: 0 is the first."""
    since_ms: int
    """When the job entered this state, by the broker's clock."""
    since_s: float
    queue: str
    """The queue of its message; "" for a job that succeeded."""
    tag: str
    """The delivery tag of its message."""
    worker: str
    """The worker that runs it, in the state *working*."""

    @classmethod
    def of(cls, job: Job, now_ms: int) -> Self:
        """Return the view of *job*."""
        return cls(
            id=job.id,
            state=job.state,
            retries=job.retries,
            since_ms=job.since_ms,
            since_s=max(now_ms - job.since_ms, 0) / 1000,
            queue=job.queue,
            tag=job.tag,
            worker=job.worker,
        )
