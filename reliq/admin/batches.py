"""The part of the Inspector that reads, seals and cancels batches of jobs."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING

from ..batches.callbacks import cancel_nested, publish_due
from ..batches.info import BatchInfo, JobInfo
from ..batches.jobs import CALLBACK_FIELD, CALLBACKS, DONE, STAGES, STATES, Change
from ..errors import (
    BrokerUnavailable,
    ConfigurationError,
    NotFound,
    ReliqError,
    require_one_of,
)
from ..values.inspection import BatchesUntold, Partial
from ..values.limits import chunks
from ..values.protocol import Attempt
from .audit import BatchAudit, audited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..batches.jobs import BatchRecord, Changed, Job, JobFailure
    from ..values.protocol import Store

MOST = 5000
"""The number of batches that one query reads: the most recently opened ones."""

_MISSING = "no batch {!r}: it was not opened here, or its batch_ttl has expired"
_WHOLE_ID = 32
_NAMED = 5
# Seconds that a command waits for an unreachable node or a moving slot.
_PATIENCE_S = 2.0


def listed_records(store: Store, fields: Sequence[str] = ()) -> Partial[BatchRecord]:
    """Return the most recently opened batches first, with these *fields* of their notes.

    Reads at most MOST; if there are more, the result is not ``complete``. Raises BrokerUnavailable
    if the broker does not answer.
    """
    with Attempt(store, _PATIENCE_S) as listing:
        ids = store.batches.batches(MOST + 1)
    if listing.lost is not None:
        return Partial([], [_unlisted(listing.lost)])
    records = store.batches.records(ids[:MOST], fields)
    records.complete = len(ids) <= MOST
    return records


def _unlisted(error: ReliqError) -> BatchesUntold:
    """Return the report of a lost node with the list of batches."""
    return BatchesUntold((), f"the list of batches is unreadable: {error}")


def _all_ids(store: Store) -> Iterator[Sequence[str]]:
    """Yield the ids of all batches, some hundred at a time, the most recently opened first."""
    before_ms, seen = 0, set[str]()
    while True:
        listed = store.batches.batches(MOST, before_ms)
        fresh = [batch for batch in listed if batch not in seen]
        seen.update(fresh)
        yield from chunks(fresh)
        if len(listed) < MOST or not fresh:
            return
        records = chain.from_iterable(map(store.batches.records, chunks(listed[::-1])))
        last = next(records, None)
        if last is None:
            text = f"none of {len(listed)} consecutive batches is readable"
            raise BrokerUnavailable(text)
        # Include that millisecond, because other batches may have been opened in it.
        before_ms = 1 + last.created_ms


class JobBatches:
    """Batches of one broker, by their ids.

    Every method for one batch raises NotFound if it does not exist. On a cluster, it raises
    BrokerUnavailable with the node's name if the node does not answer within two seconds.
    """

    _store: Store

    # -- reading

    def batches(
        self,
        limit: int = 20,
        skip: int = 0,
        *,
        name: str | None = None,
        stage: str | None = None,
    ) -> Partial[BatchInfo]:
        """Return up to *limit* batches after *skip* others, the most recently opened first.

        name: only batches with exactly this name. stage: ``open``, ``sealed`` or ``ended``. Each
        batch is read at one instant. Only the 5,000 most recent batches are read. Unreadable
        batches are in ``unreachable``.
        """
        if stage is not None:
            require_one_of("stage", stage, STAGES)
        require_page(limit, skip)
        now_ms = self._store.now_ms()
        records = listed_records(self._store)
        fit = (
            record
            for record in records
            if (name is None or record.name == name) and (stage is None or record.stage == stage)
        )
        ids = [record.id for record in islice(fit, skip, skip + limit)]
        whole = self._store.batches.records(ids, [CALLBACK_FIELD + name for name in CALLBACKS])
        return Partial((BatchInfo.of(record, now_ms) for record in whole), records.unreachable)

    def batch(self, batch: str) -> BatchInfo:
        """Return one batch."""
        with self._store.patience(_PATIENCE_S):
            return BatchInfo.of(self._record(batch), self._store.now_ms())

    def jobs(
        self, batch: str, state: str | None = None, limit: int = 20, skip: int = 0
    ) -> list[JobInfo]:
        """Return up to *limit* jobs of a batch after *skip* others, unordered.

        state: only jobs in this state (``waiting``, ``delayed``, ``working``, ``retrying``,
        ``succeeded``, ``failed``, ``error``, ``cancelled``). Not read at one instant: while jobs
        change, one may appear on two pages, or on none.
        """
        if state is not None:
            require_one_of("state", state, STATES)
        require_page(limit, skip)
        self._record(batch)
        now_ms = self._store.now_ms()
        seen: set[str] = set()

        def fit() -> Iterator[Job]:
            for job in chain.from_iterable(self._store.batches.jobs(batch)):
                if (state is None or job.state == state) and job.id not in seen:
                    seen.add(job.id)
                    yield job

        return [JobInfo.of(job, now_ms) for job in islice(fit(), skip, skip + limit)]

    def job_failures(self, batch: str, limit: int = 20, skip: int = 0) -> list[JobFailure]:
        """Return up to *limit* jobs that failed or ended in error, the latest first."""
        require_page(limit, skip)
        if not limit:
            return []
        self._record(batch)
        return self._store.batches.failures(batch, limit, skip)

    def audit_batches(self, advance: Callable[[int], None] = lambda _: None) -> Partial[BatchAudit]:
        """Count the jobs of every batch, and compare with its counters and its list of failures.

        *advance* is called with the number of further batches. Reads some hundred jobs in each
        step; a million jobs take about twenty seconds. Unreadable batches are in ``unreachable``.
        """
        store, audits = self._store, list[BatchAudit]()
        lost: dict[str, list[str]] = {}
        with Attempt(store) as listing:
            for ids in _all_ids(store):
                records = store.batches.records(ids)
                for item in records.unreachable:
                    lost.setdefault(item.error, []).extend(item.batches)
                for record in records:
                    with Attempt(store, refused=True) as attempt:
                        audits += filter(None, [audited(store, record.id)])
                    if attempt.lost is not None:
                        lost.setdefault(str(attempt.lost), []).append(record.id)
                    advance(1)
                advance(len(ids) - len(records))
        unlisted = [] if listing.lost is None else [_unlisted(listing.lost)]
        return Partial(audits, [*BatchesUntold.by_error(lost), *unlisted])

    def batch_id(self, beginning: str) -> str:
        """Return the id of the only recent batch whose id begins so, or *beginning* without one.

        Raises ConfigurationError if there are several.
        """
        listed: list[str] = []
        if len(beginning) < _WHOLE_ID:
            with suppress(BrokerUnavailable), self._store.patience(_PATIENCE_S):
                listed = self._store.batches.batches(MOST)
        matching = [batch for batch in listed if batch.startswith(beginning)]
        if len(matching) > 1 and beginning not in matching:
            ids = ", ".join(matching[:_NAMED])
            raise ConfigurationError(f"{len(matching)} batches begin with {beginning!r}: {ids}")
        return matching[0] if len(matching) == 1 else beginning

    # -- changing

    def seal_batch(self, batch: str) -> bool:
        """Seal a batch whose producer has died; False if it was already sealed.

        Afterwards, only its own jobs can add jobs. Due callbacks are published, by a consumer if
        that fails here.
        """
        return self._change(batch, Change("seal")).outcomes[0] == DONE

    def cancel_batch(self, batch: str) -> bool:
        """Cancel a batch; False if it was already cancelled, or has ended. Irreversible.

        Waiting jobs are dropped when they would begin. Running jobs continue, and can check
        ``reliq.cancelled()``. Nested batches are also cancelled, by consumers if that fails here.
        """
        changed = self._change(batch, Change("cancel"))
        if changed.cancelled:
            with suppress(ReliqError), self._store.patience(_PATIENCE_S):
                cancel_nested(self._store, batch)
        return changed.outcomes[0] == DONE

    def _change(self, batch: str, change: Change) -> Changed:
        with self._store.patience(_PATIENCE_S):
            changed = self._store.batches.change(batch, (change,))
        if changed is None:
            raise NotFound(_MISSING.format(batch))
        if changed.due:
            with suppress(ReliqError):  # the callback stays due, and a consumer publishes it
                publish_due(self._store, self._record(batch))
        return changed

    def _record(self, batch: str) -> BatchRecord:
        with self._store.patience(_PATIENCE_S):
            record = self._store.batches.batch(batch)
        if record is None:
            raise NotFound(_MISSING.format(batch))
        return record


def require_page(limit: int, skip: int) -> None:
    """Raise ConfigurationError for a negative *limit* or *skip*."""
    if limit < 0 or skip < 0:
        raise ConfigurationError(f"expected limit and skip to be at least 0: {limit}, {skip}")
