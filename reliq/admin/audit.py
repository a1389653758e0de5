"""Audits: the ledger of a queue, and the counters of a batch.

Of a queue, what was published is what left and what is here. The jobs of a batch are counted one by
one, in many steps, between which jobs go on. So they are counted twice, and the counters are read
in between: a job that has the same state since the same time in both counts had it then, because no
two states of a job have the same time. Of these nothing may be missing. Those that changed are
*moving*: the counters may have had them anywhere.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from ..store.jobs import STATES as JOB_STATES
from .names import LEFT, STATES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..store.inspection import QueueStatus
    from ..store.jobs import Job
    from ..store.protocol import Store


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The ledger of one queue: published = what left + what is here."""

    queue: str
    balanced: bool
    difference: int
    """published minus everything that is accounted for: above 0, messages are missing."""
    ledger: dict[str, int]
    counts: dict[str, int]


def audit(status: QueueStatus) -> AuditResult:
    """Compare the ledger of one queue with what is there; both were read at one instant."""
    counts = {name: int(getattr(status, name)) for name in STATES}
    left = {name: status.ledger.get(name, 0) for name in LEFT}
    published = status.ledger.get("published", 0)
    difference = published - sum(left.values()) - sum(counts.values())
    # Every envelope belongs to a message that is somewhere, and the other way round.
    difference = difference or sum(counts.values()) - status.stored
    return AuditResult(
        status.name, difference == 0, difference, {"published": published, **left}, counts
    )


# A job that is entered and withdrawn between the counts is in the counters alone.
_TRIES = 5
_AT_ONCE = 500
# The list of failures is read by ranks, which fall where jobs before them are replayed meanwhile.
_LISTED, _OVERLAP = 1000, 100
_BAD = frozenset({"failed", "error"})


@dataclass(frozen=True, slots=True)
class BatchAudit:
    """The counters of one batch, its jobs, and its list of failures."""

    batch: str
    name: str
    balanced: bool
    difference: int
    """By how many jobs the counters are wrong; 0 where jobs that move may explain it."""
    counts: dict[str, int]
    """How many jobs are in each state, by the counters."""
    jobs: dict[str, int]
    """As many were counted in each."""
    moving: int
    """So many changed meanwhile, and are compared by their number alone."""
    failures: int
    """How many jobs are in the list of those that failed."""
    failures_difference: int
    """How many are missing there, or are there and have not failed."""


def audited(store: Store, batch: str) -> BatchAudit | None:
    """Count the jobs of *batch*, and compare; None where it is gone. Raises BrokerUnavailable."""
    result = None
    for _ in range(_TRIES):
        result = _audit(store, batch)
        if result is None or result.balanced:
            break
    return result


def _audit(store: Store, batch: str) -> BatchAudit | None:
    # Half a million ids are to fit: their hashes do.
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
        if name in seen:  # some are read twice
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
    found: set[int] = set()
    skip = 0
    while True:
        page = store.batches.failures(batch, _LISTED, skip)
        found.update(hash(job) for job, _, _ in page)
        if len(page) < _LISTED:
            return found
        skip += _LISTED - _OVERLAP
