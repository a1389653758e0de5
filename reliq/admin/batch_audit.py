"""The audit of a batch: its counters are compared with its jobs, which are counted one by one.

Counting takes many steps, between which jobs go on. A job whose last change is older than the
reading of the counters was, at that instant, in the state in which it is found: of these nothing
may be missing. Those that changed since are *moving*: the counters may have had them anywhere.
Where nothing moves, as in a batch that has ended, counters and jobs have to be the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..store.jobs import STATES

if TYPE_CHECKING:
    from ..store.jobs import BatchRecord
    from ..store.protocol import Store

# A job that is withdrawn, or mended, while it is counted looks like one too many.
_TRIES = 3
# So far the clocks of two nodes of a cluster may be apart.
_CLOCKS_MS = 2000
_AT_ONCE = 500
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
    """So many of these changed meanwhile, and are compared by their number alone."""
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
    began_ms = store.now_ms() - (_CLOCKS_MS if store.has_nodes else 0)
    record = store.batches.batch(batch)
    if record is None:
        return None
    counted = Counter[str]()
    still = Counter[str]()
    # Ids may come twice, and half a million of them are to fit: their hashes do.
    seen: set[int] = set()
    bad: set[int] = set()
    moving: set[int] = set()
    for page in store.batches.jobs(batch, _AT_ONCE):
        for job in page:
            name = hash(job.id)
            if name in seen:
                continue
            seen.add(name)
            counted[job.state] += 1
            if job.since_ms >= began_ms:
                moving.add(name)
                continue
            still[job.state] += 1
            if job.state in _BAD:
                bad.add(name)
    listed, wrong = _failures(store, batch, bad, moving, began_ms)
    difference = _difference(record, still, len(moving))
    return BatchAudit(
        batch,
        record.name,
        not (difference or wrong),
        difference,
        {state: record.counts[state] for state in STATES},
        {state: counted[state] for state in STATES},
        len(moving),
        listed,
        wrong,
    )


def _difference(record: BatchRecord, still: Counter[str], moving: int) -> int:
    """Return by how many jobs the counters are wrong at least."""
    missing = sum(max(still[state] - record.counts[state], 0) for state in STATES)
    over = sum(max(record.counts[state] - still[state], 0) for state in STATES)
    return max(missing, over - moving)


def _failures(
    store: Store, batch: str, bad: set[int], moving: set[int], began_ms: int
) -> tuple[int, int]:
    """Return how many jobs are listed as failed, and of how many that is wrong.

    bad: those that have to be; moving: those of which it is not known.
    """
    listed: set[int] = set()
    wrong: set[int] = set()
    skip = 0
    while page := store.batches.failures(batch, _AT_ONCE, skip):
        for job, at_ms, _ in page:
            name = hash(job)
            listed.add(name)
            # One that has failed since it was counted is no surprise.
            if name not in bad and name not in moving and at_ms < began_ms:
                wrong.add(name)
        skip += len(page)
    return len(listed), len(wrong) + len(bad - listed)
