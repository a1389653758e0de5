"""Lost jobs: open jobs that nobody will end any more, found and ended.

What the broker does with a job's message it says itself (:mod:`.job_events`). What is left is
found by looking: a message that went with the broker's data or its queue, a dead letter whose
event was lost, a task that was acknowledged when it began and whose worker was killed, a batch
within this one that has told nothing of its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..errors import BrokerUnavailable, logger
from ..routing.partitions import names_of
from ..store.jobs import NESTED, NEVER_STORED, OPEN, Change
from ..transfer.batch_callbacks import tell_parent
from .job_reports import in_words, tell_some

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ..store.inspection import Whereabouts
    from ..store.jobs import Job
    from ..store.protocol import Store


# A job that was entered is published right after that; a retry is stored a moment before its
# message is acked. Whoever was to do so has so long.
MISSING_MS = 60_000
_MOST_REMEMBERED = 1000
_MOST_DEAD = 500
_AT_ONCE = 1000
_CHILDREN = 20


class Sweep:
    """One look at all jobs of a batch, in steps of some thousand jobs.

    It ends the open jobs that are lost. A job at work whose worker is not in the register is lost
    when the next sweep finds it so, too: the worker may be unreachable for a while, and what it
    began goes on. The same holds for a job that its worker, which sweeps itself, does not know.
    """

    # Of each batch: what was at work, at the sweep before, for a worker that nobody knew. Not of
    # one session: at a broker that is only visited each visit has another one.
    _unheard_before: ClassVar[dict[str, set[tuple[str, int]]]] = {}

    def __init__(
        self,
        batch: str,
        now_ms: int,
        look_soon: Callable[[str], None],
        runs: Callable[[str], Collection[str] | None],
    ) -> None:
        """Begin; jobs that changed in the last minute are left alone.

        *runs* names the jobs of a worker that is of this process.
        """
        self._batch = batch
        self._older_ms = now_ms - MISSING_MS
        self._look_soon = look_soon
        self._runs = runs
        self._before = self._unheard_before.pop(batch, set())
        self._unheard: set[tuple[str, int]] = set()
        self._unread = False
        self._after: str | None = ""  # None: all jobs are read
        # What was read and not looked at yet.
        self._children: list[Job] = []
        self._by_queue: dict[str, list[Job]] = {}
        self._names: dict[str, Sequence[str]] = {}
        # What is known of jobs in these is told before their messages are looked for: name, after.
        self._to_tell: list[tuple[str, int]] = []

    def step(self, store: Store) -> bool:
        """Look at some more; whether there are any left. Waits; raises BrokerUnavailable."""
        if self._after is not None and not (self._children or self._by_queue):
            self._read(store, self._after)
        if self._children:
            some, self._children = self._children[:_CHILDREN], self._children[_CHILDREN:]
            for job in some:  # a batch: it has ended, or is not there any more, or goes on
                if (child := store.batches.batch(job.id)) is not None:
                    tell_parent(store, child)
                    continue
                lost = Change("lose", job.id, tag=NESTED, text=str(job.since_ms))
                store.batches.change(self._batch, (lost,))
                self._look_soon(self._batch)
        elif self._by_queue:
            self._look_into_a_queue(store)
        if self._children or self._by_queue or self._after is not None:
            return True
        if self._unheard:
            while len(self._unheard_before) >= _MOST_REMEMBERED:
                self._unheard_before.pop(next(iter(self._unheard_before)), None)
            self._unheard_before[self._batch] = self._unheard
        # Those that are there were stored: when they are nowhere later, they are lost.
        if not self._unread:
            store.batches.change(self._batch, (Change("settle", text=str(self._older_ms)),))
        return False

    def _read(self, store: Store, after: str) -> None:
        found, after = store.batches.some_jobs(self._batch, after, _AT_ONCE)
        self._after = after or None
        for job in found:
            if job.state not in OPEN or job.since_ms >= self._older_ms:
                continue
            if job.tag == NESTED:
                self._children.append(job)
            else:
                self._by_queue.setdefault(job.queue, []).append(job)

    def _look_into_a_queue(self, store: Store) -> None:
        """Look for the messages of some jobs in their queue; or tell what is known there before."""
        queue = next(iter(self._by_queue))
        try:
            if queue not in self._names:
                self._names[queue] = names_of(store, queue) if queue else ()
                self._to_tell = [(name, 0) for name in self._names[queue]]
            while self._to_tell:
                name, after = self._to_tell.pop()
                if after := tell_some(store, name, self._look_soon, after):
                    self._to_tell.append((name, after))
                    return
            self._look_for(store, queue, self._by_queue[queue])
        except BrokerUnavailable:
            # Its node is away: nothing is known. Or none answers: then nor is what comes next.
            self._unread = True
            self._names.pop(queue, None)
            self._to_tell = []
        del self._by_queue[queue]

    def _look_for(self, store: Store, queue: str, jobs: Sequence[Job]) -> None:
        tags = [tag for job in jobs for tag in (job.tag, job.before) if tag]
        there: dict[str, Whereabouts] = {}
        for name in self._names[queue]:
            some = store.reads.whereabouts(name, tags)
            there.update({tag: place for tag, place in some.items() if place})
        # A message will end a job: its own, or that of the try before, which goes on.
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
            changed = store.batches.change(self._batch, lost)
            never = 0 if changed is None else changed.outcomes.count(NEVER_STORED)
            if never:
                logger.warning(
                    "%d jobs are taken out of batch %r: they were never stored in %r, since their "
                    "publisher died, was interrupted, or could not reach the broker",
                    never,
                    self._batch,
                    queue,
                )
            if len(lost) > never:
                logger.warning(
                    "%d jobs of batch %r are lost: nothing in %r will end them",
                    len(lost) - never,
                    self._batch,
                    queue,
                )
            self._look_soon(self._batch)

    def _without_worker(self, store: Store, missing: Sequence[Job]) -> set[tuple[str, int]]:
        """Return which of *missing* are at work for a worker that is not heard of, or not so."""
        at_work = [job for job in missing if job.state == "working" and job.worker]
        known = store.liveness(sorted({job.worker for job in at_work})) if at_work else {}
        # None: there is such a worker, and which jobs it runs is not known here.
        runs = {
            name: () if found is None or found.lapsed else self._runs(name)
            for name, found in known.items()
        }
        return {
            (job.id, job.since_ms)
            for job in at_work
            if (ids := runs[job.worker]) is not None and job.id not in ids
        }


def _change(job: Job, abandoned: set[tuple[str, int]]) -> Change | None:
    """Return what ends *job*, whose message is nowhere; None where it is not known to be lost."""
    if job.state != "working" or not job.worker:
        return Change("lose", job.id, tag=job.tag, text=str(job.since_ms))
    if (job.id, job.since_ms) not in abandoned:
        return None
    return _given_up(job, f"its worker {job.worker} was lost, or does not know it")


def _given_up(job: Job, why: str) -> Change:
    return Change("end", job.id, "lost", job.retries, job.token, job.tag, job.queue, why)


def _dead(store: Store, queues: Sequence[str], jobs: Sequence[Job]) -> list[Change]:
    """Return what ends *jobs*, whose messages are dead letters, with the reason."""
    if not jobs:
        return []
    # By two clocks: that of the batch's node, and that of the queue's.
    since_ms = min(job.since_ms for job in jobs) - MISSING_MS
    words = {
        letter.tag: in_words(letter.reason, letter.error)
        for queue in queues
        for letter in store.reads.dead_letters(queue, _MOST_DEAD, since_ms)
    }
    return [_given_up(job, words.get(job.tag, "dead letter")) for job in jobs]
