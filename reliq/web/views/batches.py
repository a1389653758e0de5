"""Batches of jobs: all of a broker, and one with its jobs and failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..asked import PAGE
from .look import Pager, pager

if TYPE_CHECKING:
    from ...admin import BatchesUntold, BatchInfo, JobFailure, JobInfo
    from .look import Look
STAGES = ("open", "sealed", "ended")


@dataclass(frozen=True, slots=True)
class BatchesView:
    """The batches of a broker, those opened last first."""

    batches: list[BatchInfo]
    untold: list[BatchesUntold]
    pager: Pager
    stage: str


@dataclass(frozen=True, slots=True)
class BatchView:
    """One batch. Failures where no state was asked for, else the jobs in that state."""

    batch: BatchInfo
    state: str
    jobs: list[JobInfo]
    failures: list[JobFailure]
    pager: Pager


def batches(look: Look) -> BatchesView:
    """Return what is shown of all batches; raises ReliqError."""
    asked = look.asked
    stage = asked.text("stage")
    found, untold = look.inspector.batches_told(
        PAGE + 1,
        asked.number("skip"),
        name=asked.text("name") or None,
        stage=stage if stage in STAGES else None,
    )
    return BatchesView(found[:PAGE], untold, pager(asked, found, None), stage)


def batch(look: Look) -> BatchView:
    """Return what is shown of one batch; raises ReliqError."""
    asked = look.asked
    name, state, skip = asked.text("id"), asked.text("state"), asked.number("skip")
    found = look.inspector.batch(name)
    if state in found.counts:
        jobs = look.inspector.jobs(name, state, PAGE + 1, skip)
        return BatchView(found, state, jobs[:PAGE], [], pager(asked, jobs, found.counts[state]))
    failures = look.inspector.job_failures(name, PAGE + 1, skip)
    return BatchView(found, "", [], failures[:PAGE], pager(asked, failures, None))


def shares(found: BatchInfo) -> list[tuple[str, float]]:
    """Return how the jobs of a batch are divided, for one bar: (class, share of 1)."""
    total = max(found.total, 1)
    counts = found.counts
    return [
        ("done", counts["succeeded"] / total),
        ("bad", found.bad / total),
        ("off", counts["cancelled"] / total),
        ("on", (counts["working"] + counts["retrying"]) / total),
    ]
