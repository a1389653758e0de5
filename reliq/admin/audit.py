"""Audits: the ledger of a queue, and the counters of a batch.

A ledger balances if the published messages equal those that left plus those that are there. The
jobs of a batch are counted one by one, in many steps, while they change. Therefore, the audit
counts them twice and reads the counters in between. A job with the same state and time in both
counts had that state at the read, because no two states of a job have the same time. All such jobs
must be in the counters. The others are *moving*: the counters may have had them in any state.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from ..batches.jobs import STATES as JOB_STATES
from .names import LEFT, STATES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..batches.jobs import Job
    from ..values.inspection import QueueStatus
    from ..values.protocol import Store


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The audit of one ledger: published messages = those that left + those that are there."""

    queue: str
    balanced: bool
    difference: int
    """Published messages minus those accounted for; above 0, messages are missing."""
    ledger: dict[str, int]
    counts: dict[str, int]


def audit(status: QueueStatus) -> AuditResult:
    """Compare the ledger of one queue with its counts; both are from one instant."""
    counts = {name: int(getattr(status, name)) for name in STATES}
    left = {name: status.ledger.get(name, 0) for name in LEFT}
    published = status.ledger.get("published", 0)
    difference = published - sum(left.values()) - sum(counts.values())
    # Each envelope must belong to one message in some state, and each message to one envelope.
    difference = difference or sum(counts.values()) - status.stored
    return AuditResult(
        status.name, difference == 0, difference, {"published": published, **left}, counts
    )


# Retry, because a job entered and withdrawn between the two counts is only in the counters.
_TRIES = 5
_AT_ONCE = 500
# The list of failures is read by rank. Ranks fall when earlier jobs are replayed meanwhile.
_LISTED, _OVERLAP = 1000, 100
_BAD = frozenset({"failed", "error"})


@dataclass(frozen=True, slots=True)
class BatchAudit:
    """The audit of one batch: its counters, its jobs, and its list of failures."""

    batch: str
    name: str
    balanced: bool
    difference: int
    """The number of jobs by which the counters are wrong; 0 if moving jobs may explain it."""
    counts: dict[str, int]
    """Jobs in each state, by the counters."""
    jobs: dict[str, int]
    """Jobs in each state, as counted."""
    moving: int
    """Jobs that changed during the audit. Only their number is compared."""
    failures: int
    """Jobs in the list of failures."""
    failures_difference: int
    """Failed jobs missing in the list, plus other jobs in it."""


def audited(store: Store, batch: str) -> BatchAudit | None:
    """Audit *batch*; None if it no longer exists. Raises BrokerUnavailable."""
    result = None
    for _ in range(_TRIES):
        result = _audit(store, batch)
        if result is None or result.balanced:
            break
    return result


def _audit(store: Store, batch: str) -> BatchAudit | None:
    # Keep hashes of ids to save memory: a batch may have half a million jobs.
    before = {hash(job.id): job.since_ms for job in _jobs(store, batch)}
    listed = _listed(store, batch)
    record = store.batches.batch(batch)
    if record is None:
        return None
    counted, still = Counter[str](), Counter[str]()
    seen: set[int] = set()
    moving: set[int] = set()
    bad: set[int] = set()
    for job in _jobs(store, batch):
        name = hash(job.id)
        if name in seen:  # a scan may return a job twice
            continue
        seen.add(name)
        counted[job.state] += 1
        if before.get(name) != job.since_ms:
            moving.add(name)
            continue
        still[job.state] += 1
        if job.state in _BAD:
            bad.add(name)
    moving.update(name for name in before if name not in seen)
    missing = sum(max(still[state] - record.counts[state], 0) for state in JOB_STATES)
    over = sum(max(record.counts[state] - still[state], 0) for state in JOB_STATES)
    difference = max(missing, over - len(moving))
    wrong = len(bad - listed) + len(listed - bad - moving)
    return BatchAudit(
        batch,
        record.name,
        not (difference or wrong),
        difference,
        {state: record.counts[state] for state in JOB_STATES},
        {state: counted[state] for state in JOB_STATES},
        len(moving),
        len(listed),
        wrong,
    )


def _jobs(store: Store, batch: str) -> Iterator[Job]:
    return chain.from_iterable(store.batches.jobs(batch, _AT_ONCE))


def _listed(store: Store, batch: str) -> set[int]:
    hashes: set[int] = set()
    skip = 0
    while True:
        page = store.batches.failures(batch, _LISTED, skip)
        hashes.update(hash(job) for job, _, _ in page)
        if len(page) < _LISTED:
            return hashes
        skip += _LISTED - _OVERLAP
