"""The verdict: no confirmed task is lost, and no task ran twice without a recorded cause.

Pure: turns histories, faults and exits into findings. A message that ran n times was delivered n
times. So n - 1 of the deliveries must have been lost for a recorded reason: the process died, it
was stopped for longer than its lease, or the broker was unreachable for too long to renew. Any
other repetition is a finding.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.chaos import ledger
from tests.chaos.model import WENT_BACK, Exit, Fault, History, Limits, Run
from tests.chaos.settings import CALLBACKS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tests.chaos.model import Cause

_MOST_SHOWN = 20
_ANY = "*"
"""Used instead of a queue: a queue of any node."""


@dataclass
class Verdict:
    """Counts about the ledger, and all findings."""

    tasks: int = 0
    """Confirmed tasks."""
    unconfirmed: int = 0
    """Tasks whose publish raised: they may have run or not."""
    runs: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    lost_by: Counter[str] = field(default_factory=Counter)
    """Lost tasks by the promotion that went back, in words; "": other losses."""
    duplicates: Counter[str] = field(default_factory=Counter)
    """Runs beyond the first, by the kind of the fault that caused them."""
    findings: list[str] = field(default_factory=list)
    poison: set[str] = field(default_factory=set)
    """Confirmed poison tasks, which must be dead letters."""
    perhaps_poison: set[str] = field(default_factory=set)
    poison_runs: Counter[int] = field(default_factory=Counter)
    """The number of poison tasks by their number of runs."""
    struck: dict[str, str] = field(default_factory=dict)
    """Unfinished tasks whose last run was killed by this fault, and not by poison beside it."""
    interrupted: int = 0
    """Tasks acked early whose process was killed, before or after the run was recorded."""
    unrecorded: list[str] = field(default_factory=list)
    """Those without a recorded run, of which each killed process explains one."""
    dead_by: Counter[str] = field(default_factory=Counter)
    """The number of these that reached their limit, which no broker can tell from poison."""

    @property
    def passed(self) -> bool:
        """Whether there are no findings."""
        return not (self.lost or self.findings)

    def add(self, other: Verdict) -> None:
        """Add the verdict on another part of the ledger."""
        for name in ("tasks", "unconfirmed", "runs", "interrupted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.struck |= other.struck
        self.by_kind += other.by_kind
        self.duplicates += other.duplicates
        self.lost_by += other.lost_by
        self.poison_runs += other.poison_runs
        self.lost += other.lost
        self.unrecorded += other.unrecorded
        self.findings += other.findings
        self.poison |= other.poison
        self.perhaps_poison |= other.perhaps_poison


def histories(lines: Iterable[ledger.Line]) -> dict[str, History]:
    """Return the history of each task."""
    found: dict[str, History] = {}
    under_way: dict[tuple[str, int, str, int, str], list[Run]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line.at):
        if line.event in ledger.OF_A_BATCH:
            continue
        history = found.get(line.id)
        if history is None:
            history = found[line.id] = History(line.id)
            if ledger.kind_of(line.id) == ledger.CALLBACK:
                history.queue = CALLBACKS
        if line.event not in ledger.OF_A_RUN:
            _note_publish(history, line)
        else:
            key = (line.id, line.retries, line.tag, line.pid, line.worker)
            if line.event == ledger.STARTED:
                run = Run(line.id, *line[5:10], line.at, queue=history.queue)
                history.runs.append(run)
                under_way[key].append(run)
            elif under_way[key] and line.event == ledger.RETRIED:
                under_way[key][-1].retried = True
            elif under_way[key]:
                run = under_way[key].pop()
                run.finish, run.ended = line.at, line.event
    return found


def _note_publish(history: History, line: ledger.Line) -> None:
    if line.event == ledger.INTENT:
        history.intent, history.countdown = line.at, line.countdown
        history.queue = line.queue
    elif line.event == ledger.CONFIRMED:
        history.confirmed = line.at
    elif line.event == ledger.FAILED:
        history.failed = line.error
    elif line.event == ledger.UNSENT:
        history.unsent = True
    elif line.event == ledger.JOINED:
        history.batch = line.batch
        history.queue = history.queue or line.queue


def outages(
    faults: Iterable[Fault], reconnect_s: float, *, cuts: bool = False
) -> list[tuple[float, float]]:
    """Return the times without a broker; periods too short for a reconnect in between are merged.

    With *cuts*, includes times without a connection. A slow network is no outage. However, if
    clients reconnect during it, their outage lasts until its end: connecting takes many round
    trips.
    """
    faults = [fault for fault in faults if fault.applied]
    slow = [(fault.at, fault.until) for fault in faults if fault.slows]
    merged: list[tuple[float, float]] = []
    away = (fault for fault in faults if fault.outage or (cuts and fault.cuts))
    for at, until in sorted((fault.at, fault.back) for fault in away):
        back = max(
            [until, *(end for begin, end in slow if begin <= until + reconnect_s and end >= at)]
        )
        if merged and at <= merged[-1][1] + reconnect_s:
            merged[-1] = (merged[-1][0], max(merged[-1][1], back))
        else:
            merged.append((at, back))
    return merged


class Blame:
    """Finds the fault that caused the loss of a delivery."""

    def __init__(
        self,
        faults: Iterable[Fault],
        exits: Iterable[Exit],
        poisoned: Iterable[Run],
        limits: Limits,
    ) -> None:
        faults = [fault for fault in faults if fault.applied]
        self.limits = limits
        self._faults = faults
        everywhere = [fault for fault in faults if not fault.queues]
        self._of_all_nodes = outages(everywhere, limits.reconnect)
        self._outages: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        self.masters = [fault for fault in faults if fault.master]
        self.of_worker: dict[str, list[Fault]] = defaultdict(list)
        self.of_pid: dict[tuple[str, int], list[tuple[str, float]]] = defaultdict(list)
        for fault in faults:
            if fault.pid:
                self.of_pid[fault.worker, fault.pid].append((fault.kind, fault.at))
            elif fault.worker:
                self.of_worker[fault.worker].append(fault)
        self._stops = {name: _stops(hit, limits) for name, hit in self.of_worker.items()}
        for run in poisoned:
            self.of_pid[run.worker, run.pid].append(("poison", run.start))
        self.exits = {ended.worker: ended for ended in exits}

    def of(self, run: Run) -> tuple[str, Cause] | None:
        """Return the kind of the fault that lost the delivery of a run, and how; None: no fault."""
        return self._death(run) or self._lost_lease(run)

    def killed(self, run: Run) -> str:
        """Return the fault that killed the process of an unfinished run; "": none, or poison."""
        kinds = [kind for kind, at in self._deaths(run) if self._died_unacked(run, at)]
        return kinds[-1] if kinds and "poison" not in kinds else ""

    def deaths(self, run: Run) -> list[float]:
        """Return the times at which the process of a run may have ended."""
        ended = self.exits.get(run.worker)
        return [at for _, at in self._deaths(run)] + ([ended.gone] if ended else [])

    def of_a_loss(self, history: History) -> str:
        """Return the promotion that lost the data about a task, in words; "": none."""
        times = [history.confirmed, *(at for r in history.runs for at in (r.start, r.finish))]
        spare = self.limits.in_flight
        return next(
            (
                fault.note
                for fault in self.masters
                for at in times
                if fault.kind == WENT_BACK
                and at is not None
                and fault.at - spare <= at <= fault.died + spare
            ),
            "",
        )

    def interrupted(self, history: History) -> bool:
        """Whether a process that was killed may have begun a task, acked it, and not finished it.

        Perhaps it was killed before it recorded the run.
        """
        last = history.last_run
        if last is not None:
            return bool(self._deaths(last))
        return history.confirmed is None or bool(self.kills)

    @property
    def kills(self) -> int:
        """The number of processes that were killed."""
        of_workers = [f for hit in self.of_worker.values() for f in hit if f.until <= f.at]
        return len(of_workers) + sum(map(len, self.of_pid.values()))

    def outages_of(self, queue: str, *, cuts: bool = False) -> list[tuple[float, float]]:
        """Return the times without the broker of *queue*; see :func:`outages`."""
        known = self._outages.get((queue, cuts))
        if known is None:
            hit = [fault for fault in self._faults if queue == _ANY or fault.hit(queue)]
            known = self._outages[queue, cuts] = outages(hit, self.limits.reconnect, cuts=cuts)
        return known

    def _death(self, run: Run) -> tuple[str, Cause] | None:
        """Return the end of the process, or of the master, that knew that the run was done."""
        for kind, at in self._deaths(run):
            if self._died_unacked(run, at):
                return kind, "death"
        for fault in self.masters:
            if self._lost_with(run, fault):
                return fault.kind, "outage"
        ended = self.exits.get(run.worker)
        if ended is None or not self._away(run.queue, ended.asked, ended.gone):
            return None
        return ("worker-term", "exit in an outage") if self._died_unacked(run, ended.gone) else None

    def _deaths(self, run: Run) -> list[tuple[str, float]]:
        """Return the kinds and times of kills of the process of a run."""
        deaths = list(self.of_pid.get((run.worker, run.pid), ()))
        return deaths + [
            (f.kind, f.at) for f in self.of_worker.get(run.worker, ()) if f.until <= f.at
        ]

    def _lost_lease(self, run: Run) -> tuple[str, Cause] | None:
        """Return the cause for which the process did not renew for longer than a lease."""
        for kind, at, until in self._stops.get(run.worker, ()):
            if self._stood_still(run, at, until):
                return kind, "freeze"
        limits = self.limits
        # The successor of a lost node, or a new node of a slot, extends the leases that it finds.
        for at, until in self._of_all_nodes:
            late = until + limits.reconnect + limits.hold
            too_long = until - at > limits.lease - limits.renewed_every
            if too_long and run.start <= late and _end(run) >= at:
                return "outage", "outage"
        return None

    def stored_elsewhere(self, history: History, retries: int) -> int:
        """Return how often a retried publish may also have been stored at a second broker."""
        if not self.limits.two_brokers:
            return 0
        spans = [
            (run.start, (run.finish or run.start) + self.limits.hold)
            for run in history.runs
            if run.retried and run.retries == retries - 1
        ]
        if not retries:
            spans = [(history.intent or 0.0, history.confirmed or float("inf"))]
        return sum(self._away(history.queue, at, until) for at, until in spans)

    def _away(self, queue: str, at: float, until: float) -> bool:
        """Whether *queue* was unserved at some time in this period."""
        reconnect = self.limits.reconnect
        return any(a <= until and u + reconnect >= at for a, u in self.outages_of(queue))

    def _lost_with(self, run: Run, fault: Fault) -> bool:
        """Whether a master died that knew of the run, and its replicas possibly did not."""
        if not fault.hit(run.queue):
            return False
        if not fault.queues and not fault.died:
            return self._died_unacked(run, fault.at)
        # Clients of a cluster notice the loss of a node and repeat commands without a reply. Only
        # commands with a recent reply can therefore be lost: an ack, or a reserve.
        recently, died = fault.at - self.limits.in_flight, max(fault.at, fault.died)
        acked = run.finish is not None and recently <= run.finish <= died
        return acked or recently <= run.start <= died + self.limits.in_flight

    def was_disturbed(self, run: Run) -> bool:
        """Whether its worker was stopped, or possibly without a broker, when it started."""
        return any(
            # A fault is recorded only after it was applied.
            fault.at - self.limits.in_flight
            <= run.start
            <= max(fault.until, fault.back) + self.limits.reconnect
            for fault in self._faults
            if (fault.outage or fault.cuts or fault.slows)
            or (fault.worker == run.worker and fault.until > fault.at)
        )

    def _died_unacked(self, run: Run, at: float) -> bool:
        """Whether the ack cannot have reached the broker when the process died."""
        # Later records of a dead process were in transit: it runs no code.
        if run.start > at + self.limits.in_flight:
            return False
        return self._unacked(run, at)

    def _unacked(self, run: Run, at: float) -> bool:
        """Whether the ack cannot have reached the broker at a time."""
        if run.finish is None or run.finish >= at - self._transit_s(run.finish):
            return True
        # It finished long before, but there was no connection from then on.
        reconnect = self.limits.reconnect
        # The ack of a job waits for its batch, which may be on any node.
        queue = _ANY if run.tag.endswith("j") else run.queue
        return any(
            a - self.limits.in_flight <= run.finish <= u + reconnect
            and at <= u + reconnect + self.limits.in_flight
            for a, u in self.outages_of(queue, cuts=True)
        )

    def _transit_s(self, finish: float) -> float:
        """Return the longest transit of the ack of a run that finished then."""
        limits = self.limits
        slowed = (
            fault.slows
            for fault in self._faults
            if fault.at - limits.in_flight <= finish <= fault.until
        )
        return limits.in_flight + 2 * limits.waits * max(slowed, default=0.0)

    def _stood_still(self, run: Run, at: float, until: float) -> bool:
        """Whether a lease may have expired in a freeze; its messages may run after the freeze."""
        limits = self.limits
        if until - at < limits.lease - limits.renewed_every:
            return False
        return run.start <= until + limits.hold and self._unacked(run, at)


def _stops(faults: Sequence[Fault], limits: Limits) -> list[tuple[str, float, float]]:
    """Return the stops of a worker, merged if there was no time in between to renew a lease."""
    found: list[tuple[str, float, float]] = []
    for fault in sorted(faults, key=lambda fault: fault.at):
        if fault.until <= fault.at:
            continue
        if found and fault.at <= found[-1][2] + limits.in_flight:
            found[-1] = (fault.kind, found[-1][1], max(found[-1][2], fault.until))
        else:
            found.append((fault.kind, fault.at, fault.until))
    return found


def _end(run: Run) -> float:
    return float("inf") if run.finish is None else run.finish


def check(
    tasks: Iterable[History],
    blame: Blame,
    limits: Limits,
    *,
    one_tag: bool = True,
    cancelled: Collection[str] = (),
) -> Verdict:
    """Judge histories. *one_tag*: the transport keeps the tag of a message at redeliveries.

    *cancelled*: batches whose jobs may not have run. The batch checker judges them.
    """
    verdict = Verdict()
    for history in tasks:
        _judge(history, blame, limits, verdict, one_tag, history.batch in cancelled)
    return verdict


def _judge(
    history: History,
    blame: Blame,
    limits: Limits,
    verdict: Verdict,
    one_tag: bool,
    may_be_dropped: bool,
) -> None:
    kind = ledger.kind_of(history.id)
    verdict.runs += len(history.runs)
    if history.confirmed is None:
        # Callbacks, and tasks of a killed process by `batch.map`, have no record of their publish.
        # Refused publishes are intended.
        verdict.unconfirmed += history.intent is not None and not history.unsent
    else:
        verdict.tasks += 1
        verdict.by_kind[ledger.KINDS[kind]] += 1
    if history.unsent and history.runs:
        verdict.findings.append(f"{history.id}: ran, and its publish was refused")
    if history.intent is None and kind not in (ledger.MAPPED, ledger.CALLBACK):
        verdict.findings.append(f"{history.id}: ran and was never published")
        return
    if kind == ledger.POISON:
        perhaps = history.confirmed is None or may_be_dropped
        (verdict.perhaps_poison if perhaps else verdict.poison).add(history.id)
        verdict.poison_runs[len(history.runs)] += 1
        if any(run.finish is not None for run in history.runs):
            verdict.findings.append(f"{history.id}: poison that finished")
        return
    if kind == ledger.EARLY and not history.finishes and blame.interrupted(history):
        verdict.interrupted += 1
        if not history.runs and history.confirmed is not None:
            verdict.unrecorded.append(history.id)
    else:
        _judge_end(history, blame, limits, verdict, may_be_dropped)
        _judge_repeats(history, blame, verdict, one_tag)


def _judge_end(
    history: History, blame: Blame, limits: Limits, verdict: Verdict, may_be_dropped: bool
) -> None:
    """Find out if a task was lost, or ran too early."""
    went_back = ""
    if history.confirmed is not None and not may_be_dropped and not history.finishes:
        verdict.lost.append(history.id)
        went_back = blame.of_a_loss(history)
        verdict.lost_by[went_back] += 1
    last = history.last_run
    if last and not went_back and (fault := blame.killed(last)):
        verdict.struck[history.id] = fault
    if history.intent is not None and history.runs:
        first = min(run.start for run in history.runs)
        early = history.countdown - (first - history.intent)
        if early > limits.early:
            verdict.findings.append(f"{history.id}: ran {early:.2f} s before its time")


def _judge_repeats(history: History, blame: Blame, verdict: Verdict, one_tag: bool) -> None:
    """Explain all runs but one of each message, and all messages but one of each retry."""
    by_tag: dict[tuple[int, str], list[Run]] = defaultdict(list)
    for run in history.runs:
        by_tag[run.retries, run.tag if one_tag else "-"].append(run)
    for (retries, _), runs in by_tag.items():
        if len(runs) > 1:
            more = blame.stored_elsewhere(history, retries)
            if not one_tag:  # with one tag, the check below distinguishes these.
                more += max(0, _asked_for(history, retries) - 1)
            _explain(runs, blame, verdict, more)
    stored = Counter(retries for retries, _ in by_tag)
    for retries, number in stored.items():
        # Each run of the previous message may have published the retry.
        allowed = _asked_for(history, retries)
        if number > allowed:
            verdict.findings.append(
                f"{history.id}: stored {number} times, not {allowed} (retry {retries})"
            )


def _asked_for(history: History, retries: int) -> int:
    """Return the number of publishes of this retry; 1 for the task itself."""
    if not retries:
        return 1
    return sum(run.retried for run in history.runs if run.retries == retries - 1)


def _explain(runs: Sequence[Run], blame: Blame, verdict: Verdict, elsewhere: int) -> None:
    runs = sorted(runs, key=lambda run: run.start)
    causes = [blame.of(run) for run in runs]
    blamed = [cause for cause in causes if cause is not None]
    blamed += elsewhere * [("stored twice", "death")]
    for kind, how in blamed[: len(runs) - 1]:
        verdict.duplicates[kind if kind != "outage" else how] += 1
    missing = len(runs) - 1 - len(blamed)
    if missing > 0:
        shown = "; ".join(
            f"{run.worker} pid {run.pid} attempt {run.attempt} {run.start:.2f} to "
            + ("never" if run.finish is None else f"{run.finish:.2f}")
            + (f" [{cause[0]}]" if cause else "")
            for run, cause in zip(runs[:_MOST_SHOWN], causes, strict=False)
        )
        verdict.duplicates["unexplained"] += missing
        verdict.findings.append(
            f"{runs[0].id} retry {runs[0].retries} ({runs[0].tag}): {len(runs)} runs, "
            f"{missing} without a cause: {shown}"
        )


def check_dead(
    verdict: Verdict, dead: Sequence[tuple[str | None, str]], reason: str = "delivery_limit"
) -> None:
    """Find poison tasks that are no dead letters, and unexpected dead letters.

    A task that a fault killed in its isolated delivery is a legitimate dead letter, and not lost.
    It may have finished before, in a process that died before it could send the ack.

    *dead* are pairs of task id and reason.
    """
    for task_id, number in Counter(task_id for task_id, _ in dead).items():
        if number > 1:
            verdict.findings.append(f"{task_id}: {number} times in the dead letters")
    for task_id, why in dead:
        if task_id in verdict.struck and why == reason:
            if task_id in verdict.lost:
                verdict.lost.remove(task_id)
                verdict.lost_by[""] -= 1
            verdict.dead_by[verdict.struck.pop(task_id)] += 1
        elif task_id not in verdict.poison | verdict.perhaps_poison:
            verdict.findings.append(f"{task_id}: innocent, and in the dead letters ({why})")
        elif why != reason:
            verdict.findings.append(f"{task_id}: dead because {why!r}, not {reason!r}")
    for task_id in sorted(verdict.poison - {task_id for task_id, _ in dead if task_id}):
        verdict.findings.append(f"{task_id}: poison, and not in the dead letters")
