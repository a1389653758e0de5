"""The status of a batch, for pages that ask again and again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ..store.batch_info import BatchInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store.jobs import JobFailure, Progress, Report


@dataclass(frozen=True, slots=True)
class BatchStatus(BatchInfo):
    """One batch, and a part of what is known of its jobs."""

    failures: Sequence[JobFailure]
    """Jobs that failed or ended in error, the last first."""
    progress: Sequence[Progress]
    """How far jobs are, those first that reported it last."""
    messages: Sequence[Report]
    """What jobs reported, the last first."""

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON can carry it. Times are ISO 8601, in UTC."""
        return {
            "id": self.id,
            "name": self.name,
            "counts": self.counts,
            "total": self.total,
            "done": self.done,
            "percent": self.percent,
            "created": _iso(self.created_ms),
            "sealed": _iso(self.sealed_ms),
            "cancelled_at": _iso(self.cancelled_ms),
            "ended": _iso(self.ended_ms),
            "failures": [_row(item) for item in self.failures],
            "progress": [_row(item) for item in self.progress],
            "messages": [_row(item) for item in self.messages],
        }


def _row(item: JobFailure | Progress | Report) -> dict[str, Any]:
    row = item._asdict()
    return {**row, "at": _iso(row.pop("at_ms"))}


def _iso(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat()
