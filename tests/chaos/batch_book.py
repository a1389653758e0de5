"""The records of each batch of a run, in the ledger and at the brokers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reliq import NotFound
from tests.chaos import ledger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reliq.admin import Inspector
    from tests.chaos.model import History

EVERY = 10_000_000


@dataclass
class Book:
    """The ledger's record of one batch. Times are CLOCK_MONOTONIC; None: not recorded."""

    id: str
    parent: str = ""
    opened: float | None = None
    sealed: float | None = None
    cancelling: float | None = None
    cancelled: float | None = None
    jobs: dict[str, History] = field(default_factory=dict)
    callbacks: dict[str, History] = field(default_factory=dict)
    """By name: `success`, `complete`, `failure`."""

    @property
    def producer_died(self) -> bool:
        """Whether its seal is not recorded. It may then have jobs that are not recorded."""
        return self.sealed is None


@dataclass(frozen=True)
class Found:
    """One batch at an idle broker."""

    where: str
    counts: dict[str, int]
    total: int
    ended: bool
    cancelled: bool
    due: tuple[str, ...]
    published: tuple[str, ...]
    jobs: dict[str, str]
    """Job -> state."""
    reasons: dict[str, str]
    """Job -> reason of its failure."""


def books(lines: Iterable[ledger.Line]) -> dict[str, Book]:
    """Return the ledger's record of each batch, without its jobs."""
    found: dict[str, Book] = {}
    for line in lines:
        if line.event not in ledger.OF_A_BATCH:
            continue
        book = found.setdefault(line.id, Book(line.id))
        if line.event == ledger.OPENING:
            book.parent = line.batch
        elif line.event == ledger.OPENED:
            book.opened = line.at
        elif line.event == ledger.SEALED:
            book.sealed = line.at
        elif line.event == ledger.CANCELLING:
            book.cancelling = line.at
        else:
            book.cancelled = line.at
    return found


def enter(known: dict[str, Book], tasks: Iterable[History]) -> None:
    """Enter the jobs and callbacks among *tasks* into their known batches."""
    for task in tasks:
        if ledger.kind_of(task.id) == ledger.CALLBACK:
            batch, _, name = task.id[1:].rpartition(".")
            if batch in known:
                known[batch].callbacks[name] = task
        elif task.batch in known:
            known[task.batch].jobs[task.id] = task


def look(inspector: Inspector, where: str, ids: Iterable[str]) -> dict[str, Found]:
    """Return the batches of a broker: those of *ids*, and all that it lists."""
    found = {}
    listed = [info.id for info in inspector.batches(EVERY)]
    for batch in dict.fromkeys([*ids, *listed]):
        try:
            info = inspector.batch(batch)
            jobs = inspector.jobs(batch, limit=EVERY)
            failures = inspector.job_failures(batch, EVERY)
        except NotFound:
            continue
        found[batch] = Found(
            where,
            info.counts,
            info.total,
            info.ended_ms is not None,
            info.cancelled_ms is not None,
            tuple(info.due),
            tuple(info.published),
            {job.id: job.state for job in jobs},
            {failure.job: failure.reason for failure in failures},
        )
    return found
