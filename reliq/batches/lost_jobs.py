"""Lost jobs: find and end open jobs that no message or worker will end.

The broker reports most ends of a job's message itself (:mod:`.job_events`). A sweep finds the rest:
a message lost with the broker's data or its queue, a dead letter whose event was lost, a task
that was acked when it began and whose worker was killed, or an unreported end of a nested batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..errors import BrokerUnavailable, logger
from ..routing.partitions import names_of
from .callbacks import report_to_parent
from .job_reports import in_words
from .jobs import NESTED, NEVER_STORED, OPEN, Change

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ..values.inspection import Whereabouts
    from ..values.protocol import Store
    from .job_reports import JobReports
    from .jobs import Job


# Time to publish a job after it was entered, or to ack a message after its retry was stored.
MISSING_MS = 60_000
_MOST_REMEMBERED = 1000
_MOST_DEAD = 500
_AT_ONCE = 1000
_CHILDREN = 20


class Sweep:
    """One check of all jobs of a batch, in steps of some thousand jobs.

    It ends open jobs that are lost. A running job whose worker is not in the register is lost if
    the next sweep finds the same: the worker may be unreachable for a while and continue its
    work. The same holds for a job that is unknown to its worker, if the worker itself sweeps.
    """

    # By batch: running jobs with an unknown worker at the previous sweep. Shared by all sessions,
    # because each visit to a broker that is only visited has another session.
    _unheard_before: ClassVar[dict[str, set[tuple[str, int]]]] = {}

    def __init__(
        self,
        batch: str,
        now_ms: int,
        reports: JobReports,
        runs: Callable[[str], Collection[str] | None],
    ) -> None:
        """Start a sweep that skips jobs that changed in the last minute.

        *runs* returns the jobs of a worker if the worker belongs to this process.
        """
        self._batch = batch
        self._older_ms = now_ms - MISSING_MS
        self._reports = reports
        self._runs = runs
        self._before = self._unheard_before.pop(batch, set())
        self._unheard: set[tuple[str, int]] = set()
        self._unread = False
        self._after: str | None = ""  # None: all jobs have been read
        # Jobs that were read and not checked yet.
        self._children: list[Job] = []
        self._by_queue: dict[str, list[Job]] = {}
        self._names: dict[str, Sequence[str]] = {}
        # Queues, as (name, after), whose events are reported before their messages are searched.
        self._to_report: list[tuple[str, int]] = []

    def step(self, store: Store) -> bool:
        """Check some more jobs; return whether any are left. Waits; raises BrokerUnavailable."""
        if self._after is not None and not (self._children or self._by_queue):
            self._read(store, self._after)
        if self._children:
            some, self._children = self._children[:_CHILDREN], self._children[_CHILDREN:]
            for job in some:  # each is a batch: ended, missing, or in progress
                if (child := store.batches.batch(job.id)) is not None:
                    report_to_parent(store, child)
                    continue
                lost = Change("lose", job.id, tag=NESTED, text=str(job.since_ms))
                self._reports.change(store, self._batch, (lost,))
        elif self._by_queue:
            self._examine_queue(store)
        if self._children or self._by_queue or self._after is not None:
            return True
        if self._unheard:
            while len(self._unheard_before) >= _MOST_REMEMBERED:
                self._unheard_before.pop(next(iter(self._unheard_before)), None)
            self._unheard_before[self._batch] = self._unheard
        # The remaining jobs were stored. If one is missing later, it is lost.
        if not self._unread:
            store.batches.change(self._batch, (Change("settle", text=str(self._older_ms)),))
        return False

    def _read(self, store: Store, after: str) -> None:
        jobs, after = store.batches.some_jobs(self._batch, after, _AT_ONCE)
        self._after = after or None
        for job in jobs:
            if job.state not in OPEN or job.since_ms >= self._older_ms:
                continue
            if job.tag == NESTED:
                self._children.append(job)
            else:
                self._by_queue.setdefault(job.queue, []).append(job)

    def _examine_queue(self, store: Store) -> None:
        """Search a queue for the messages of some jobs, after reporting the queue's events."""
        queue = next(iter(self._by_queue))
        try:
            if queue not in self._names:
                self._names[queue] = names_of(store, queue) if queue else ()
                self._to_report = [(name, 0) for name in self._names[queue]]
            while self._to_report:
                name, after = self._to_report.pop()
                if after := self._reports.report_events(store, name, after):
                    self._to_report.append((name, after))
                    return
            self._search(store, queue, self._by_queue[queue])
        except BrokerUnavailable:
            # Its node, or the whole broker, is unreachable: the state of these jobs is unknown.
            self._unread = True
            self._names.pop(queue, None)
            self._to_report = []
        del self._by_queue[queue]

    def _search(self, store: Store, queue: str, jobs: Sequence[Job]) -> None:
        tags = [tag for job in jobs for tag in (job.tag, job.before) if tag]
        there: dict[str, Whereabouts] = {}
        for name in self._names[queue]:
            some = store.reads.whereabouts(name, tags)
            there.update({tag: place for tag, place in some.items() if place})
        # A job will still be ended by its message, or by that of the previous try if it runs on.
        missing = [
            job for job in jobs if not there.get(job.tag) and there.get(job.before) != "there"
        ]
        gone = self._without_worker(store, missing)
        self._unheard |= gone
        given_up = gone & self._before
        lost = [change for job in missing if (change := _change(job, given_up)) is not None]
        dead = [job for job in jobs if there.get(job.tag) == "dead"]
        lost += _dead(store, self._names[queue], dead)
        if lost:
            changed = self._reports.change(store, self._batch, lost)
            never = 0 if changed is None else changed.outcomes.count(NEVER_STORED)
            if never:
                logger.warning(
                    "%d jobs are removed from batch %r: they were never stored in %r, as their "
                    "publisher died, was interrupted, or could not reach the broker",
                    never,
                    self._batch,
                    queue,
                )
            if len(lost) > never:
                logger.warning(
                    "%d jobs of batch %r are lost: no message in %r will end them",
                    len(lost) - never,
                    self._batch,
                    queue,
                )

    def _without_worker(self, store: Store, missing: Sequence[Job]) -> set[tuple[str, int]]:
        """Return the running jobs in *missing* whose worker is silent or does not run them."""
        at_work = [job for job in missing if job.state == "working" and job.worker]
        known = store.liveness(sorted({job.worker for job in at_work})) if at_work else {}
        # None: the worker exists, and its jobs are not known here.
        runs = {
            name: () if state is None or state.lapsed else self._runs(name)
            for name, state in known.items()
        }
        return {
            (job.id, job.since_ms)
            for job in at_work
            if (ids := runs[job.worker]) is not None and job.id not in ids
        }


def _change(job: Job, abandoned: set[tuple[str, int]]) -> Change | None:
    """Return the change that ends *job*, whose message is missing; None if it may not be lost."""
    if job.state != "working" or not job.worker:
        return Change("lose", job.id, tag=job.tag, text=str(job.since_ms))
    if (job.id, job.since_ms) not in abandoned:
        return None
    return _given_up(job, f"its worker {job.worker} was lost, or does not know it")


def _given_up(job: Job, why: str) -> Change:
    return Change("end", job.id, "lost", job.retries, job.token, job.tag, job.queue, why)


def _dead(store: Store, queues: Sequence[str], jobs: Sequence[Job]) -> list[Change]:
    """Return changes that end *jobs*, whose messages are dead letters, with the reason."""
    if not jobs:
        return []
    # The times come from two clocks: that of the batch's node, and that of the queue's.
    since_ms = min(job.since_ms for job in jobs) - MISSING_MS
    words = {
        letter.tag: in_words(letter.reason, letter.error)
        for queue in queues
        for letter in store.reads.dead_letters(queue, _MOST_DEAD, since_ms)
    }
    return [_given_up(job, words.get(job.tag, "dead letter")) for job in jobs]
