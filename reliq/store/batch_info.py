"""A batch and its jobs as people see them: one model for producers, operators and the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from .jobs import CALLBACK_FIELD, ENDED, OPEN, STATES, Stage

if TYPE_CHECKING:
    from .jobs import BatchRecord, Job


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """One batch at one instant. Times are the broker's, in ms since the epoch; None: not yet."""

    id: str
    name: str
    stage: Stage
    counts: dict[str, int]
    """How many jobs are in each state."""
    total: int
    done: int
    """How many jobs have ended, in any state."""
    percent: float
    """Done of total; 100 where the batch has ended."""
    created_ms: int
    sealed_ms: int | None
    cancelled_ms: int | None
    ended_ms: int | None
    """When its last job ended, while it was sealed."""
    age_s: float
    """Since it was opened."""
    due: list[str]
    """Its callbacks that are to be published: success, complete, failure."""
    published: list[str]
    """Its callbacks that were published."""

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
            published=[name for name in record.said if CALLBACK_FIELD + name in record.fields],
            **more,
        )

    @property
    def open(self) -> int:
        """How many jobs have not ended."""
        return sum(self.counts[state] for state in OPEN)

    @property
    def bad(self) -> int:
        """How many jobs failed, or ended in error."""
        return self.counts["failed"] + self.counts["error"]


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One job."""

    id: str
    """The id of the Celery task."""
    state: str
    retries: int
    """Which try of the task it is: 0 is the first."""
    since_ms: int
    """Since when it is in this state, by the broker's clock."""
    since_s: float
    queue: str
    """The queue of its message; "" of one that has succeeded."""
    tag: str
    """Its delivery tag there."""
    worker: str
    """Its worker, where it is working."""

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
