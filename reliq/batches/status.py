"""What is known of a batch, for people and for pages that ask again and again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ..store.jobs import ENDED, OPEN, STATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..store.jobs import Batches, BatchRecord, State


@dataclass(frozen=True)
class Failure:
    """A job that failed, or ended in error."""

    job: str
    at: datetime
    reason: str


@dataclass(frozen=True)
class JobProgress:
    """How far a job has said last that it is."""

    job: str
    state: State
    at: datetime
    done: float
    total: float
    """0: it has not said of how much."""
    text: str


@dataclass(frozen=True)
class Message:
    """What a job has reported."""

    job: str
    at: datetime
    text: str


@dataclass(frozen=True)
class BatchStatus:
    """One batch at one instant."""

    id: str
    name: str
    counts: Mapping[State, int]
    """How many jobs are in each state."""
    created: datetime
    sealed: datetime | None
    cancelled: datetime | None
    ended: datetime | None
    """When its last job ended, while it was sealed; None: it goes on."""
    failures: Sequence[Failure]
    """Some that failed, the last first."""
    progress: Sequence[JobProgress]
    """How far some jobs are, those first that have said so last."""
    messages: Sequence[Message]
    """Some of what jobs have reported, the last first."""

    @property
    def total(self) -> int:
        """How many jobs there are."""
        return sum(self.counts.values())

    @property
    def done(self) -> int:
        """How many have ended, however."""
        return sum(self.counts[state] for state in ENDED)

    @property
    def open(self) -> int:
        """How many have not."""
        return sum(self.counts[state] for state in OPEN)

    @property
    def percent(self) -> float:
        """How much of what is known is done: 100 where the batch has ended."""
        return 100.0 if self.ended else round(100 * self.done / max(self.total, 1), 1)

    def as_dict(self) -> dict[str, Any]:
        """Return what a page needs, as JSON can carry it. Times are ISO 8601, in UTC."""
        times = {"created": self.created, "sealed": self.sealed}
        times |= {"cancelled_at": self.cancelled, "ended": self.ended}
        return {
            "id": self.id,
            "name": self.name,
            "counts": {state: self.counts[state] for state in STATES},
            "total": self.total,
            "done": self.done,
            "percent": self.percent,
            **{name: at and at.isoformat() for name, at in times.items()},
            "failures": [
                {"job": item.job, "at": item.at.isoformat(), "reason": item.reason}
                for item in self.failures
            ],
            "progress": [
                {
                    "job": item.job,
                    "state": item.state,
                    "at": item.at.isoformat(),
                    "done": item.done,
                    "total": item.total,
                    "text": item.text,
                }
                for item in self.progress
            ],
            "messages": [
                {"job": item.job, "at": item.at.isoformat(), "text": item.text}
                for item in self.messages
            ],
        }


def status_of(batches: Batches, record: BatchRecord, limit: int, skip: int) -> BatchStatus:
    """Return what people are told of *record*: of each list up to *limit*, after *skip* others."""
    skip = max(skip, 0)
    failures = batches.failures(record.id, limit, skip)
    progress = batches.progress(record.id, limit, skip)
    reports = batches.reports(record.id, limit, skip)
    return BatchStatus(
        record.id,
        record.name,
        record.counts,
        _when(record.created_ms) or datetime.fromtimestamp(0, timezone.utc),
        _when(record.sealed_ms),
        _when(record.cancelled_ms),
        _when(record.ended_ms),
        [Failure(job, _at(ms), reason) for job, ms, reason in failures],
        [
            JobProgress(one.job, one.state, _at(one.at_ms), one.done, one.total, one.text)
            for one in progress
        ],
        [Message(one.job, _at(one.at_ms), one.text) for one in reports],
    )


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def _when(ms: int) -> datetime | None:
    return _at(ms) if ms else None
