"""Job reports: one reporter tells batches how their jobs end, from three sources.

The sources are the messages that this process settles, the events that the broker leaves in a
queue, and the sweeps for lost jobs (:mod:`.lost_jobs`).

A settled message is acked only after its batch has recorded the end of its job. If the worker
dies in between, the message is delivered again, so the end of the job is never lost. The lease is
kept until then. The batch may be on another node than the queue, and unreachable.

A message that the broker dead-letters, removes or replays leaves an event in its queue, in the
same step. A consumer that finds events reports them to the batches, and removes the recorded
ones. Two consumers may report the same event, or die in between: a batch ignores known numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, ReliqError, logger
from ..forks import OwnLock
from ..message.queue_names import queue_of
from ..values.job_headers import job_in
from ..values.limits import BATCH
from ..values.protocol import Attempt
from .jobs import Change, by_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..values.protocol import Store
    from .jobs import Changed, JobEvent


@dataclass(slots=True)
class _Report:
    """One pending report of a change."""

    batch: str
    change: Change
    then: Callable[[], None] | None
    """Acks the message, which waits for the report."""
    since: float = 0.0
    """Time at which it was last sent."""


class JobReports:
    """The reports of one session to batches, some of which are pending. Thread-safe."""

    lock = OwnLock()
    """Guards the pending reports. No code sends or waits while it holds the lock."""

    def __init__(self, due: Callable[[str], None]) -> None:
        """Call *due* with each batch that then has a callback due."""
        self._due = due

    def begin(self) -> None:
        """Start empty, also in a child: inherited reports belong to the parent."""
        self._owed: dict[int, _Report] = {}
        self._unsent: set[int] = set()
        # Reports that the broker does not record now. Sent again at the next tick, or connection.
        self._refused: set[int] = set()
        self._numbers = count()

    @property
    def is_empty(self) -> bool:
        """Whether no report is pending."""
        return not self._owed

    @property
    def has_unsent(self) -> bool:
        """Whether unsent reports are pending."""
        return bool(self._unsent)

    def report(
        self,
        store: Store | None,
        batch: str,
        change: Change,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Report *change* to *batch*; call *then* when it is recorded. Never waits, never raises.

        Reports that cannot be sent over *store*, or have no store, use the next connection.
        """
        with self.lock:
            number = next(self._numbers)
            self._owed[number] = _Report(batch, change, then)
            if store is None:
                self._unsent.add(number)
        if store is not None:
            self._post(store, number)

    def resend(self, older_than_s: float) -> None:
        """Mark reports without a reply for *older_than_s* to be sent again, which is harmless."""
        limit = monotonic() - older_than_s
        with self.lock:
            refused, self._refused = self._refused, set()
            late = {number for number, report in self._owed.items() if report.since < limit}
            self._unsent |= late | refused

    def flush(self, store: Store) -> None:
        """Post the unsent reports of earlier connections; does not wait."""
        with self.lock:
            unsent, self._unsent = self._unsent, set()
        for number in sorted(unsent):
            self._post(store, number)

    def _post(self, store: Store, number: int) -> None:
        with self.lock:
            report = self._owed.get(number)
            if report is None:
                return  # it was confirmed meanwhile
            report.since = monotonic()
        try:
            done = partial(self._done, number)
            store.batches.post_change(report.batch, report.change, done)
        except BrokerUnavailable as exc:
            self._done(number, exc)
            logger.warning("%s; the end of a job is reported over the next connection", exc)

    def change(self, store: Store, batch: str, changes: Sequence[Change]) -> Changed | None:
        """Report *changes* to *batch* and wait for it; returns None if there is no such batch."""
        changed = store.batches.change(batch, changes)
        if changed is not None and changed.due:
            self._due(batch)
        return changed

    def report_events(self, store: Store, queue: str, after: int = 0) -> int:
        """Report up to some hundred events of *queue*, after number *after*, to batches; waits.

        Returns the number to continue after, or 0 at the end. Raises BrokerUnavailable. Over a
        cluster, reports to batches on unreachable nodes remain, and the others are sent.
        """
        events = store.job_events(queue, BATCH, after)
        entries = [(event.number, change_of(queue, event)) for event in events]
        done = [number for number, entry in entries if entry is None]
        attempt = Attempt(store, refused=True)
        for batch, changes in by_batch(entry for _, entry in entries if entry is not None).items():
            with attempt:
                self.change(store, batch, changes)
                done += [change.token for change in changes]
        if done:
            store.forget_job_events(queue, done)
        if attempt.lost:
            left = len(entries) - len(done)
            logger.warning("%d reports of %r are postponed: %s", left, queue, attempt.lost)
        return events[-1].number if len(events) == BATCH else 0

    def _done(self, number: int, result: Changed | ReliqError | None) -> None:
        with self.lock:
            if isinstance(result, ReliqError) and result.passes:
                (self._refused if result.reply else self._unsent).add(number)
                return
            report = self._owed.pop(number, None)
        if report is None:
            return
        if isinstance(result, ReliqError):
            logger.error(
                'job %s of batch %s: the report "%s" could not be recorded, and its message is '
                "acked nevertheless: %s",
                report.change.job,
                report.batch,
                report.change.state or report.change.what,
                result,
            )
        elif result is not None and result.due:
            self._due(report.batch)
        if report.then is not None:
            report.then()


_GONE = {"expired": "expired", "purged": "purged from its queue"}
_DEAD = {
    "delivery_limit": "its delivery limit was reached",
    "expired": "expired",
    "maxlen": "its queue was full",
    "rejected": "rejected",
}


def in_words(reason: str, error: str = "") -> str:
    """Return a readable reason why the job of a dead letter has ended."""
    words = f"dead letter: {_DEAD.get(reason, reason)}"
    return f"{words} ({error})" if error else words


def change_of(queue: str, event: JobEvent) -> tuple[str, Change] | None:
    """Return the batch of *event*, which occurred in *queue*, and the change to report to it."""
    membership = job_in(event.envelope)
    if membership is None:
        return None
    batch, job, retries = membership
    change = Change(
        "replay", job, retries=retries, token=event.number, tag=event.tag, queue=queue_of(queue)
    )
    if event.what == "waits":
        return batch, change
    why = _GONE.get(event.reason, event.reason)
    if event.what == "dead":
        why = in_words(event.reason, event.error)
    return batch, change._replace(what="end", state="lost", text=why)
