"""The verdict on batches: each has ended, has correct counters, and published its callbacks once.

Pure: compares the ledger with the brokers and returns findings. A job must have the state that
its runs imply. Any other state needs a recorded cause that docs/batches.md names: its batch was
cancelled, a master was lost with data that was not replicated, or its message was moved from the
second of two brokers to the first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.chaos import ledger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.chaos.batch_book import Book, Found
    from tests.chaos.checker import Blame
    from tests.chaos.model import History, Limits

_EARNED = {ledger.FINISHED: "succeeded", ledger.REFUSED: "failed", ledger.RAISED: "error"}
_LOST = ("lost with the broker's data", "its worker ")
"""Beginnings of the reasons of jobs that were reported as lost."""
_DEAD = "dead letter"
_BAD = ("failed", "error")


@dataclass
class BatchVerdict:
    """Counts about batches, and all findings."""

    batches: Counter[str] = field(default_factory=Counter)
    """The number of batches, and of those that were cancelled, left open by a death, ..."""
    jobs: Counter[str] = field(default_factory=Counter)
    """The number of jobs by state."""
    callbacks: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    """Jobs in another state than their runs imply, by the cause."""
    findings: list[str] = field(default_factory=list)


class BatchChecker:
    """Compares the ledger with the brokers."""

    def __init__(self, books: Mapping[str, Book], blame: Blame, limits: Limits) -> None:
        self._books, self._blame, self._limits = books, blame, limits
        self._children: dict[str, list[Book]] = {}
        for book in books.values():
            if book.parent:
                self._children.setdefault(book.parent, []).append(book)
        self.verdict = BatchVerdict()

    def check(self, brokers: Sequence[Mapping[str, Found]]) -> BatchVerdict:
        """Judge every batch in the ledger or at a broker."""
        everywhere: dict[str, list[Found]] = {}
        for broker in brokers:
            for batch, found in broker.items():
                everywhere.setdefault(batch, []).append(found)
        self._everywhere = everywhere
        for batch in everywhere.keys() - self._books.keys():
            self._find(batch, "is there, and nobody has opened it")
        for batch, book in self._books.items():
            at = everywhere.get(batch, [])
            if len(at) == 1:
                self._judge(book, at[0])
            elif at:
                self._find(batch, f"is at {len(at)} brokers")
            elif book.opened is not None and not self._lost_apart([book.opened]):
                self._find(batch, "was opened, and is nowhere")
        return self.verdict

    def _find(self, batch: str, text: str) -> None:
        self.verdict.findings.append(f"batch {batch}: {text}")

    def _judge(self, book: Book, found: Found) -> None:
        said = self.verdict.batches
        said["all"] += 1
        said["cancelled"] += found.cancelled
        said["not sealed by their publisher"] += book.producer_died
        said["nested"] += bool(book.parent)
        self.verdict.jobs.update(found.jobs.values())
        if not found.ended:
            left = {state: n for state, n in found.counts.items() if n}
            self._find(book.id, f"{found.where}has not ended: {left}")
        counted = Counter(found.jobs.values())
        if counted != Counter({state: n for state, n in found.counts.items() if n}):
            self._find(book.id, f"its counters say {found.counts}, its jobs {dict(counted)}")
        if found.cancelled and book.cancelling is None:
            self._find(book.id, "is cancelled, and nobody has done so")
        self._judge_total(book, found)
        for job, state in found.jobs.items():
            if job in book.jobs:
                self._judge_job(book, found, book.jobs[job], state)
        if found.cancelled and book.cancelled is not None:
            self._judge_late(book, book.cancelled + self._limits.in_flight)
        self._judge_children(book, found)
        self._judge_callbacks(book, found)

    # -- the jobs

    def _judge_total(self, book: Book, found: Found) -> None:
        """Find missing and unknown jobs."""
        children = {child.id for child in self._children.get(book.id, ())}
        for job, history in book.jobs.items():
            if job in found.jobs:
                if history.unsent:
                    self._find(book.id, f"{job} is a job, and its publish was refused")
            elif history.confirmed is not None and not self._is_excused(history):
                self._find(book.id, f"{job} was confirmed, and is no job of it")
        unknown = found.jobs.keys() - book.jobs.keys() - children
        # A job may also have gone to the other broker, where the batch does not exist.
        if unknown and not (book.producer_died or self._limits.two_brokers):
            shown = ", ".join(sorted(unknown)[:3])
            self._find(book.id, f"{len(unknown)} jobs that nobody has published ({shown})")
        for job in unknown:  # entered by a producer that died before it stored the message
            if found.jobs[job] not in ("error", "cancelled"):
                self._find(book.id, f"{job} is {found.jobs[job]}, and has never run")

    # -- the states of jobs

    def _judge_job(self, book: Book, found: Found, history: History, state: str) -> None:
        reason = found.reasons.get(history.id, "")
        finishes = history.finishes
        kind = ledger.kind_of(history.id)
        is_lost = state == "error" and reason.startswith(_LOST)
        earned = {_EARNED[run.ended] for run in finishes}
        if state in earned and not is_lost:
            if state == "error" and "ValueError" not in reason:
                self._find(book.id, f"{history.id} is an error because of {reason!r}")
        elif state == "cancelled" and found.cancelled and self._may_be_dropped(history):
            pass
        elif is_lost and not earned and history.confirmed is None:
            self.verdict.excused["its publish was not confirmed"] += 1
        elif is_lost and found.where and (finishes or (kind == ledger.POISON and history.runs)):
            self.verdict.excused["its message was moved to the first broker"] += 1
        elif is_lost and self._is_excused(history):
            self.verdict.excused["a master was lost"] += 1
        elif is_lost and found.cancelled and self._died_before_its_retry(history):
            self.verdict.excused["its worker died before its next try was stored"] += 1
        elif kind == ledger.POISON and state == "error" and reason.startswith(_DEAD):
            pass
        elif not found.ended and state not in _EARNED.values():
            pass  # a separate finding reports that it has not ended
        else:
            runs = ", ".join(
                f"{run.worker} {run.start:.2f} to "
                + ("never" if run.finish is None else f"{run.finish:.2f} {run.ended}")
                for run in history.runs
            )
            self._find(
                book.id,
                f"{history.id} is {state} ({reason or 'no reason'}), and was to be "
                f"{' or '.join(sorted(earned)) or 'run'}; its runs: {runs or 'none'}",
            )

    def _may_be_dropped(self, history: History) -> bool:
        """Whether a job of a cancelled batch may have ended without a report."""
        blame = self._blame  # the reply with the cancellation may have been lost too
        return all(blame.was_disturbed(run) or blame.of(run) for run in history.finishes)

    def _died_before_its_retry(self, history: History) -> bool:
        """Whether the process of the last run died after the run had asked for a retry.

        The retry may have been entered and not stored. In a cancelled batch, the message of the
        run before is then dropped.
        """
        last = history.last_run
        if last is None or not last.retried or last.finish is not None:
            return False
        return self._blame.of(last) is not None

    def _is_excused(self, history: History) -> bool:
        """Whether a lost master may have known more of a job than its successor."""
        times = [history.intent, history.confirmed]
        times += [at for run in history.runs for at in (run.start, run.finish)]
        return self._lost_apart([at for at in times if at is not None])

    def _lost_apart(self, times: Sequence[float]) -> bool:
        spare = self._limits.in_flight
        return any(
            fault.at - spare <= at <= max(fault.at, fault.died) + spare
            for fault in self._blame.masters
            for at in times
        )

    def _judge_late(self, book: Book, since: float) -> None:
        """Find runs after the cancellation, except in workers that could not reach the broker."""
        for history in book.jobs.values():
            for run in history.runs:
                if run.start > since and not self._blame.was_disturbed(run):
                    late = f"{run.start - since:.2f} s later ({run.worker} at {run.start:.2f})"
                    self._find(book.id, f"was cancelled, and {history.id} ran {late}")

    # -- nested batches

    def _judge_children(self, book: Book, found: Found) -> None:
        for child in self._children.get(book.id, ()):
            at = self._everywhere.get(child.id)
            state = found.jobs.get(child.id)
            if state is None:
                if child.opened is not None and not self._lost_apart([child.opened]):
                    self._find(book.id, f"{child.id} is in it, and no job of it")
            elif at and at[0].ended and found.ended:
                expected = _of_child(at[0], found)
                if state != expected:
                    self._find(book.id, f"batch {child.id} is {state} in it, not {expected}")

    # -- callbacks

    def _judge_callbacks(self, book: Book, found: Found) -> None:
        if not found.ended:
            for name in book.callbacks:
                if name != "failure":
                    self._find(book.id, f"on_{name} has run, and it has not ended")
            return
        if found.due:
            self._find(book.id, f"is still to say {', '.join(found.due)}")
        bad = any(found.counts[state] for state in _BAD)
        expected = {"complete"}
        if bad:
            expected.add("failure")
        elif not found.cancelled and not found.counts["cancelled"]:
            expected.add("success")
        for name in sorted(expected | book.callbacks.keys()):
            callback = book.callbacks.get(name)
            runs = [] if callback is None else callback.runs
            self.verdict.callbacks[name] += bool(runs)
            if name not in expected:
                self._find(book.id, f"on_{name} has run: {found.counts}")
            elif callback is None or not callback.finishes:
                self._find(book.id, f"on_{name} was not run: {found.published} are published")
            else:
                self._judge_time(book, found, name, min(run.start for run in runs))

    def _judge_time(self, book: Book, found: Found, name: str, began: float) -> None:
        """Find callbacks that ran too early."""
        confirmed = [job.confirmed for job in book.jobs.values() if job.confirmed is not None]
        if confirmed and began < max(confirmed):
            self._find(book.id, f"on_{name} ran before its last job was published")
        if name == "failure":
            return
        for job, state in found.jobs.items():
            finishes = book.jobs[job].finishes if job in book.jobs else []
            is_lost = found.reasons.get(job, "").startswith(_LOST)
            if state in _EARNED.values() and finishes and not is_lost:
                first = min(run.finish or 0.0 for run in finishes)
                if began < first:
                    self._find(book.id, f"on_{name} ran {first - began:.2f} s before {job} ended")


def _of_child(child: Found, parent: Found) -> str:
    """Return the state that an ended batch has in its parent."""
    if child.cancelled or child.counts["cancelled"]:
        return "cancelled" if parent.cancelled else "error"
    return next((state for state in ("error", "failed") if child.counts[state]), "succeeded")
