"""Lost jobs: open jobs that nobody will end any more, found and ended.

What the broker does with a job's message it says itself (:mod:`.job_events`). What is left is
found by looking: a message that went with the broker's data or its queue, a dead letter whose
event was lost, a task that was acknowledged when it began and whose worker was killed, a batch
within this one that has told nothing of its end.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable
from ..message.queue_names import partition_names
from ..store.jobs import NESTED, OPEN, Change
from ..transfer.batch_callbacks import tell_parent
from .job_events import in_words, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..store.inspection import Whereabouts
    from ..store.jobs import Job
    from ..store.protocol import Store

logger = logging.getLogger("reliq")

# A job that was entered is published right after that; a retry is stored a moment before its
# message is acked. Whoever was to do so has so long.
MISSING_MS = 60_000
_MOST_REMEMBERED = 1000
_MOST_DEAD = 500


class LostJobs:
    """What one session knows of jobs that may be lost."""

    def __init__(self, look_soon: Callable[[str], None]) -> None:
        self._look_soon = look_soon
        # Of each batch: what was at work, at the look before, for a worker that nobody knew.
        self._unheard: dict[str, set[tuple[str, int]]] = {}

    def sweep(self, store: Store, batch: str, now_ms: int, missing_ms: int = MISSING_MS) -> None:
        """End the open jobs of *batch* that are lost; waits, and reads them all.

        One at work whose worker is not in the register is lost when it is so at the next look,
        too: a worker that stops leaves the register, and finishes what it has begun.
        """
        before = self._unheard.pop(batch, set())
        unheard: set[tuple[str, int]] = set()
        looked_at: dict[str, Sequence[str]] = {}
        for part in store.batches.jobs(batch):
            by_queue: dict[str, list[Job]] = {}
            for job in part:
                if job.state not in OPEN or now_ms - job.since_ms <= missing_ms:
                    continue
                if job.tag == NESTED:
                    self._look_at_child(store, batch, job)
                else:
                    by_queue.setdefault(job.queue, []).append(job)
            for queue, jobs in by_queue.items():
                try:
                    if queue not in looked_at:
                        looked_at[queue] = self._look_at(store, queue)
                    tags = [tag for job in jobs for tag in (job.tag, job.before) if tag]
                    there = _whereabouts(store, looked_at[queue], tags)
                except BrokerUnavailable:
                    continue  # its node is away: nothing is known
                missing = [job for job in jobs if not _has_message(job, there)]
                gone = self._without_worker(store, missing)
                unheard |= gone
                lost = [
                    change for job in missing if (change := _change(job, gone & before)) is not None
                ]
                dead = [job for job in jobs if there.get(job.tag) == "dead"]
                lost += _dead(store, looked_at[queue], dead)
                self._end(store, batch, queue, lost)
        if unheard:
            while len(self._unheard) >= _MOST_REMEMBERED:
                del self._unheard[next(iter(self._unheard))]
            self._unheard[batch] = unheard

    def _look_at(self, store: Store, queue: str) -> Sequence[str]:
        """Return the names that *queue* has messages under; what is known there is told before."""
        if not queue:
            return ()
        layout = store.layout(queue)
        names = partition_names(queue, layout.end if layout is not None else 1)
        for name in names:
            tell(store, name, self._look_soon)
        return names

    def _look_at_child(self, store: Store, batch: str, job: Job) -> None:
        """End a job that is a batch where that has ended, or is not there any more."""
        child = store.batches.batch(job.id)
        if child is not None:
            tell_parent(store, child)
            return
        lost = Change("lose", job.id, tag=NESTED, text=str(job.since_ms))
        store.batches.change(batch, (lost,))
        self._look_soon(batch)

    @staticmethod
    def _without_worker(store: Store, missing: Sequence[Job]) -> set[tuple[str, int]]:
        """Return which of *missing* are at work for a worker that is not heard of."""
        at_work = [job for job in missing if job.state == "working" and job.worker]
        known = store.liveness(sorted({job.worker for job in at_work})) if at_work else {}
        lives = {name for name, found in known.items() if found is not None and not found.lapsed}
        return {(job.id, job.since_ms) for job in at_work if job.worker not in lives}

    def _end(self, store: Store, batch: str, queue: str, lost: Sequence[Change]) -> None:
        if not lost:
            return
        logger.warning(
            "%d jobs of batch %r are lost: nothing in %r will end them", len(lost), batch, queue
        )
        store.batches.change(batch, lost)
        self._look_soon(batch)


def _has_message(job: Job, there: dict[str, Whereabouts]) -> bool:
    """Whether a message will end *job*: its own, or that of the try before, which goes on."""
    return bool(there.get(job.tag)) or there.get(job.before) == "there"


def _whereabouts(store: Store, queues: Sequence[str], tags: list[str]) -> dict[str, Whereabouts]:
    """Return where the messages of *tags* are that are in one of *queues*."""
    found: dict[str, Whereabouts] = {}
    for queue in queues:
        some = store.whereabouts(queue, tags)
        found.update({tag: place for tag, place in some.items() if place})
    return found


def _change(job: Job, abandoned: set[tuple[str, int]]) -> Change | None:
    """Return what ends *job*, whose message is nowhere; None where it is not known to be lost."""
    if job.state != "working" or not job.worker:
        return Change("lose", job.id, tag=job.tag, text=str(job.since_ms))
    if (job.id, job.since_ms) not in abandoned:
        return None
    return _given_up(job, f"its worker {job.worker} was lost")


def _given_up(job: Job, why: str) -> Change:
    return Change("end", job.id, "lost", job.retries, job.token, job.tag, job.queue, why)


def _dead(store: Store, queues: Sequence[str], jobs: Sequence[Job]) -> list[Change]:
    """Return what ends *jobs*, whose messages are dead letters, with the reason."""
    if not jobs:
        return []
    # By two clocks: that of the batch's node, and that of the queue's.
    since_ms = min(job.since_ms for job in jobs) - MISSING_MS
    letters = {
        letter.tag: letter
        for queue in queues
        for letter in store.dead_letters(queue, _MOST_DEAD, since_ms)
    }
    return [
        _given_up(
            job,
            in_words(letters[job.tag].reason, letters[job.tag].error)
            if job.tag in letters
            else "dead letter",
        )
        for job in jobs
    ]
