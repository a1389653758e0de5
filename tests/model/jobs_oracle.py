"""The effect of job reports on a batch, implemented a second time in plain Python.

Each change has one method of BatchOracle. It gets the time (``now``, ms), changes the oracle as the
broker should change, and returns the outcome. There are no counters here: the states are counted
instead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from reliq.batches.jobs import (
    CALLBACKS,
    CANCELLED,
    DONE,
    ENDED,
    LOST,
    NESTED,
    NEVER_STORED,
    NO_JOB,
    OPEN,
    PARENT,
    SEALED,
    STATES,
    UNCHANGED,
    Change,
)
from reliq.values.limits import REPORTS_OF_A_JOB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reliq.batches.jobs import Callback, Note

PARENT_BATCH, CHILD = BATCHES = ("b", "c")
"""The second batch is a job of the first."""
BAD = ("failed", "error")


@dataclass(frozen=True)
class Known:
    """One job."""

    state: str
    retries: int = 0
    token: int = 0
    since: int = 0
    tag: str = ""
    queue: str = ""
    worker: str = ""
    """If the job is retrying, the tag of the previous try."""
    why: str = ""
    by_broker: bool = False
    """Whether the broker itself reported the error; a worker's later report replaces it."""

    @property
    def is_open(self) -> bool:
        """Return whether the job has not ended."""
        return self.state in OPEN

    @property
    def is_mendable(self) -> bool:
        """Return whether a later delivery, or the next try, can continue the job."""
        return self.is_open or self.state == "error"


def comparable(job: Known, new: Change) -> bool:
    """Return whether the tokens of two deliveries belong to the same queue."""
    return not new.queue or not job.queue or new.queue == job.queue


def publisher(tag: str) -> str:
    """Return the publisher that made *tag*, or "" for a foreign tag."""
    return tag[14:24] if len(tag) > 24 else ""


def delivery_order(job: Known, new: Change) -> int:
    """Return -1, 0 or 1 for a report about an earlier, the same or a later delivery than known."""
    mine, theirs = (job.retries, job.token), (new.retries, new.token)
    if mine[0] == theirs[0] and not comparable(job, new):
        return 1
    return (theirs > mine) - (theirs < mine)


@dataclass
class BatchOracle:
    """One batch."""

    created: int
    fields: dict[str, str] = field(default_factory=dict)
    sealed: int = 0
    cancelled: int = 0
    ended: int = 0
    due: dict[Callback, int] = field(default_factory=dict)
    said: set[Callback] = field(default_factory=set)
    jobs: dict[str, Known] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    """For each job that failed or ended in error, the time at which it did."""
    progress: dict[str, tuple[int, float, float, str]] = field(default_factory=dict)
    reports: list[tuple[str, int, str]] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)
    """For each publisher, when it entered its last jobs, whose messages it may not have stored."""

    @property
    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        found = Counter(job.state for job in self.jobs.values())
        return {state: found[state] for state in STATES}

    # -- changes

    def change(self, changes: Sequence[Change], by: str, now: int) -> tuple[bool, list[int], bool]:
        """Make changes in order; return if it is cancelled, the outcomes, if callbacks are due."""
        outcomes = []
        for new in changes:
            if new.what == "settle":
                self.heard = {who: at for who, at in self.heard.items() if at >= int(new.text)}
                outcomes.append(DONE)
            elif new.what in {"seal", "cancel"}:
                self.heard.pop(publisher(new.tag), None)
                outcomes.append(self._close(new.what, now))
            else:
                rule = getattr(self, f"_{new.what}")
                before = self.jobs.get(new.job)
                found, job = rule(before, new, by)
                if job is not None:
                    since = now if before is None else max(now, before.since + 1)
                    who = publisher(new.tag)
                    if before is None and new.what == "enter" and who:
                        since = self.heard.get(who, now) if new.text == "more" else now
                        self.heard[who] = since
                    self.jobs[new.job] = replace(job, since=since)
                    self._fail(new.job, now)
                elif found in {DONE, NEVER_STORED}:
                    del self.jobs[new.job]
                outcomes.append(found)
            self._conclude(now)
        return self.cancelled > 0, outcomes, bool(self.due)

    def _fail(self, name: str, now: int) -> None:
        if self.jobs[name].state in BAD:
            self.failed[name] = now
        else:
            self.failed.pop(name, None)

    def _enter(self, job: Known | None, new: Change, by: str) -> tuple[int, Known | None]:
        entered = Known(new.state, new.retries, 0, 0, new.tag, new.queue)
        before = "" if job is None else job.worker if job.state == "retrying" else job.tag
        again = replace(entered, state="retrying", worker=before)
        if self.cancelled and (job is None or not job.is_open):
            return CANCELLED, None
        if job is None:
            adder = self.jobs.get(by)
            if self.sealed and not (adder is not None and adder.state == "working"):
                return SEALED, None
            return DONE, entered
        if new.retries > job.retries:
            again = replace(again, worker=job.tag)
            return (DONE, again) if job.is_mendable else (UNCHANGED, None)
        told = new.retries < job.retries or new.tag == job.tag
        if told or job.state == "working" or not job.is_open:
            return UNCHANGED, None
        return DONE, again if job.state == "retrying" else entered

    def _withdraw(self, job: Known | None, new: Change, _: str) -> tuple[int, Known | None]:
        fresh = job is not None and job.tag == new.tag and not job.token
        if job is None or not fresh or job.state == "working" or not job.is_open:
            return UNCHANGED, None
        if job.state != "retrying":
            return DONE, None
        return DONE, Known("working", max(job.retries - 1, 0), 0, 0, job.worker, job.queue)

    def _begin(self, job: Known | None, new: Change, _: str) -> tuple[int, Known | None]:
        if job is None:
            if self.ended:
                return (CANCELLED if self.cancelled else NO_JOB), None
        else:
            order = delivery_order(job, new)
            if not job.is_mendable:
                return (CANCELLED if self.cancelled else UNCHANGED), None
            if order < 0:
                return (CANCELLED if self.cancelled else UNCHANGED), None
            if order == 0 and (job.state in {"working", "error"} or new.token > 0):
                return UNCHANGED, None
        state = "cancelled" if self.cancelled else "working"
        worker = "" if self.cancelled else new.text
        found = Known(state, new.retries, new.token, 0, new.tag, new.queue, worker)
        return (CANCELLED if self.cancelled else DONE), found

    def _return(self, job: Known | None, new: Change, _: str) -> tuple[int, Known | None]:
        if job is None or job.state != "working" or delivery_order(job, new) != 0:
            return UNCHANGED, None
        return DONE, Known("waiting", new.retries, new.token, 0, job.tag, job.queue)

    def _end(self, job: Known | None, new: Change, _: str) -> tuple[int, Known | None]:
        if job is None:
            return NO_JOB, None
        revoked = new.state == "cancelled" and not self.cancelled
        state = "error" if revoked or new.state == "lost" else new.state
        retries = new.retries
        if new.state == "lost":
            overtaken = 0 < new.token < job.token and comparable(job, new)
            if not job.is_open or job.tag not in {"", new.tag} or overtaken:
                return UNCHANGED, None
            retries = job.retries
        else:
            given_up = job.state == "error" and job.by_broker
            if not job.is_open and not given_up:
                return UNCHANGED, None
            late = delivery_order(job, new) < 0 and not (given_up and job.tag == new.tag)
            if state in {"error", "cancelled"} and late:
                return UNCHANGED, None
        done = state == "succeeded"
        return DONE, Known(
            state,
            max(retries, job.retries),
            max(new.token, job.token),
            0,
            "" if done else new.tag or job.tag,
            "" if done else new.queue or job.queue,
            why=new.text,
            by_broker=new.state == "lost",
        )

    def _lose(self, job: Known | None, new: Change, _: str) -> tuple[int, Known | None]:
        if job is None or not job.is_open or job.tag != new.tag or str(job.since) != new.text:
            return UNCHANGED, None
        in_doubt = job.since == self.heard.get(publisher(job.tag))
        if in_doubt and job.state in {"waiting", "delayed"} and not job.token:
            return NEVER_STORED, None
        return DONE, replace(job, state="error", why=LOST, worker="", by_broker=True)

    def _replay(self, job: Known | None, new: Change, _: str) -> tuple[int, Known | None]:
        if job is None or job.state in {"succeeded", "cancelled"}:
            return UNCHANGED, None
        known = comparable(job, new)
        if known and 0 < new.token <= job.token:
            return UNCHANGED, None
        if new.text:
            if job.tag != new.text:
                return UNCHANGED, None
        elif job.is_open and not (new.token and job.tag == new.tag):
            return UNCHANGED, None
        state = "retrying" if job.state == "retrying" else "waiting"
        token = max(new.token, job.token) if known else new.token
        return DONE, Known(state, job.retries, token, 0, new.tag, new.queue)

    def _close(self, what: str, now: int) -> int:
        if what == "cancel":
            if self.cancelled or self.ended:
                return UNCHANGED
            self.cancelled = now
        elif self.sealed:
            return UNCHANGED
        self.sealed = self.sealed or now
        return DONE

    def _conclude(self, now: int) -> None:
        if not self.sealed:
            return
        counts = self.counts
        if any(counts[state] for state in BAD):
            self._be_due("failure", now)
        if any(counts[state] for state in OPEN):
            self.ended = 0
            return
        self.ended = self.ended or now
        self._be_due("complete", now)
        if not self.cancelled and not any(counts[state] for state in ENDED[1:]):
            self._be_due("success", now)

    def _be_due(self, callback: Callback, now: int) -> None:
        if callback not in self.said:
            self.due.setdefault(callback, now)

    # -- callbacks, notes

    def say(self, callback: Callback) -> None:
        """Record a due callback as published."""
        if self.due.pop(callback, None) is not None:
            self.said.add(callback)

    def end_in_parent(self) -> list[Change]:
        """Return the changes that report the end of a batch to its parent."""
        name, counts = self.fields["own"], self.counts
        if not self.ended or PARENT not in self.fields:
            return []
        state: Any = next((bad for bad in ("error", "failed") if counts[bad]), "succeeded")
        why = (
            f"{counts['error']} of its {len(self.jobs)} jobs ended in error, "
            f"{counts['failed']} failed"
        )
        if self.cancelled or counts["cancelled"]:
            state, why = "cancelled", f"cancelled, with {counts['cancelled']} of its jobs"
        end = Change("end", name, state, tag=NESTED, text=why)
        return [Change("replay", name, tag=NESTED), end] if state == "succeeded" else [end]

    def note(self, note: Note, now: int) -> bool:
        """Record a progress or a report of an open job."""
        job = self.jobs.get(note.job)
        if job is None or not job.is_open or note.retries < job.retries:
            return False
        same_try = note.retries == job.retries and note.queue == job.queue
        if same_try and note.token < job.token:
            return False
        mine = sum(one[0] == note.job for one in self.reports)
        reported = bool(note.report) and mine < REPORTS_OF_A_JOB
        if reported:
            self.reports.insert(0, (note.job, now, note.report))
        if note.progress is not None:
            self.progress[note.job] = (now, *note.progress)
        return reported or note.progress is not None

    # -- views

    def shown(self) -> dict[str, Any]:
        """Return the broker's expected report of the batch."""
        return {
            "counts": self.counts,
            "times": (self.created, self.sealed, self.cancelled, self.ended),
            "due": {one for one in CALLBACKS if one in self.due},
            "due_since": min(self.due.values(), default=0),
            "said": self.said,
            "heard": max(self.heard.values(), default=0),
            "jobs": {
                name: (job.state, job.retries, job.token, job.since, job.tag, job.queue, job.worker)
                for name, job in self.jobs.items()
            },
            "failures": sorted(
                ((name, at, self.jobs[name].why) for name, at in self.failed.items()),
                key=lambda one: (one[1], one[0]),
                reverse=True,
            ),
            "progress": sorted(
                (
                    (name, self.jobs[name].state, *said)
                    for name, said in self.progress.items()
                    if name in self.jobs
                ),
                key=lambda one: (one[2], one[0]),
                reverse=True,
            ),
            "reports": self.reports,
        }
