"""Job reports: how jobs have ended, told to their batches by workers and by the broker.

A message is acked when its batch knows how its job has ended, not before: whoever dies in between
leaves a message that is delivered again, and not a job of which nobody will ever hear. Its lease
is kept meanwhile. The batch may be at another node than the queue, and be away.

A message that the broker gives up on, removes or puts back leaves an event in its queue, in the
same step. Whoever sees that there are some tells the batches, and removes what these know. Two may
do so at once, or be killed in between: a batch knows by an event's number whether it is news.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerRefused, BrokerUnavailable, MessageRefused, ReliqError, logger
from ..forks import OwnLock
from ..integrations.outcomes import job_of
from ..message.envelope import EnvelopeError, decode
from ..message.queue_names import queue_of
from ..store.jobs import Change
from ..store.limits import BATCH
from ..store.protocol import goes_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..store.jobs import Changed, JobEvent
    from ..store.protocol import Store


@dataclass(slots=True)
class _Report:
    """One change that is owed."""

    batch: str
    change: Change
    then: Callable[[], None] | None
    """To acknowledge the message, which waits for the report."""
    since: float = 0.0
    """When it was sent last."""


class JobReports:
    """What one session owes batches. Thread-safe."""

    lock = OwnLock(reentrant=True)
    """Guards what is owed. Nothing is sent, and nobody waits, under it."""

    def __init__(self, look_soon: Callable[[str], None]) -> None:
        self._look_soon = look_soon

    def begin(self) -> None:
        """Owe nothing, as a child does: what was owed is its parent's."""
        self._owed: dict[int, _Report] = {}
        self._unsent: set[int] = set()
        self._numbers = count()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is owed."""
        return not self._owed

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def report(
        self,
        store: Store | None,
        batch: str,
        change: Change,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Tell *batch* of *change*, and call *then* when it knows. Never waits, never raises.

        What cannot be told over *store* is told over the next connection; without a store all.
        """
        with self.lock:
            number = next(self._numbers)
            self._owed[number] = _Report(batch, change, then)
            if store is None:
                self._unsent.add(number)
        if store is not None:
            self._post(store, number)

    def resend(self, older_than_s: float) -> None:
        """Have those sent again that have had no answer for so long: it is harmless."""
        limit = monotonic() - older_than_s
        with self.lock:
            self._unsent |= {number for number, one in self._owed.items() if one.since < limit}

    def flush(self, store: Store, _patience_s: float = inf) -> None:
        """Send what earlier connections could not. Posts it, and does not wait."""
        with self.lock:
            unsent, self._unsent = self._unsent, set()
        for number in sorted(unsent):
            self._post(store, number)

    def _post(self, store: Store, number: int) -> None:
        with self.lock:
            report = self._owed.get(number)
            if report is None:
                return  # it was answered meanwhile
            report.since = monotonic()
        try:
            done = partial(self._done, number)
            store.batches.post_change(report.batch, (report.change,), done)
        except BrokerUnavailable as exc:
            self._done(number, exc)
            logger.warning("%s; the end of a job is reported over the next connection", exc)

    def _done(self, number: int, result: Changed | ReliqError | None) -> None:
        with self.lock:
            if isinstance(result, BrokerUnavailable):
                self._unsent.add(number)
                return
            report = self._owed.pop(number, None)
        if report is None:
            return
        if isinstance(result, ReliqError):
            logger.error(
                "job %s of batch %s: that it has %s could not be noted, and its message is "
                "acknowledged all the same: %s",
                report.change.job,
                report.batch,
                report.change.state or report.change.what,
                result,
            )
        elif result is not None and result.due:
            self._look_soon(report.batch)
        if report.then is not None:
            report.then()


_GONE = {"expired": "expired", "purged": "purged from its queue"}
_DEAD = {
    "delivery_limit": "it has failed as often as it may",
    "expired": "expired",
    "maxlen": "its queue was full",
    "rejected": "rejected",
}


def in_words(reason: str, error: str = "") -> str:
    """Return why the job of a dead letter has ended, for people."""
    words = f"dead letter: {_DEAD.get(reason, reason)}"
    return f"{words} ({error})" if error else words


def change_of(queue: str, event: JobEvent) -> tuple[str, Change] | None:
    """Return the batch that *event*, of *queue*, is news for, and what it is to be told."""
    try:
        found = job_of(decode(event.envelope).headers)
    except EnvelopeError:
        return None
    if found is None:
        return None
    batch, job, retries = found
    where = retries, event.number, event.tag, queue_of(queue)
    if event.what == "waits":
        return batch, Change("replay", job, "", *where)
    why = _GONE.get(event.reason, event.reason)
    if event.what == "dead":
        why = in_words(event.reason, event.error)
    return batch, Change("end", job, "lost", *where, why)


def tell_some(store: Store, queue: str, look_soon: Callable[[str], None], after: int = 0) -> int:
    """Tell the batches of some hundred events of *queue*, from that after number *after* on; waits.

    Returns the number to go on after, 0: there are no more. *look_soon* is given a batch of which
    something is due then. Raises BrokerUnavailable; over several nodes what cannot be told, since
    a batch's node is away, is left, and the rest is told.
    """
    events = store.job_events(queue, BATCH, after)
    told: list[int] = []
    by_batch: dict[str, list[tuple[int, Change]]] = {}
    for event in events:
        found = change_of(queue, event)
        if found is None:
            told.append(event.number)
        else:
            by_batch.setdefault(found[0], []).append((event.number, found[1]))
    for batch, changes in by_batch.items():
        due = _told(store, batch, [change for _, change in changes])
        if due is not None:
            told += [number for number, _ in changes]
        if due:
            look_soon(batch)
    if told:
        store.forget_job_events(queue, told)
    return events[-1].number if len(events) == BATCH else 0


def _told(store: Store, batch: str, changes: Sequence[Change]) -> bool | None:
    """Tell *batch*; whether something of it is due, None where it could not be told.

    What is no id of a job is left out.
    """
    try:
        changed = store.batches.change(batch, changes)
    except MessageRefused as exc:
        if len(changes) > 1:
            found = [_told(store, batch, [change]) for change in changes]
            return None if None in found else True in found
        logger.warning("batch %r is told nothing of a job: %s", batch, exc)
        return False
    except (BrokerUnavailable, BrokerRefused) as exc:
        if isinstance(exc, BrokerUnavailable) and not goes_on(store):
            raise
        logger.warning(
            "batch %r is told later what became of %d of its jobs: %s", batch, len(changes), exc
        )
        return None
    return changed is not None and changed.due
