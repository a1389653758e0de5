"""One run: the crew works, the nemesis applies faults, all settles, and the ledger is judged."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import redis

from reliq import ReliqError
from reliq.admin import Inspector
from tests.chaos import batch_book, keys, ledger
from tests.chaos.batch_checker import BatchChecker, BatchVerdict
from tests.chaos.broker import Broker
from tests.chaos.checker import Blame, Verdict, check, check_dead, histories
from tests.chaos.cluster_broker import ClusterBroker
from tests.chaos.crew import Crew
from tests.chaos.embedded_broker import EmbeddedBroker
from tests.chaos.faults import FAULTS, Starve
from tests.chaos.login_broker import LoginBroker
from tests.chaos.nemesis import Nemesis
from tests.chaos.overlaps import LimitsInForce, Overlaps, check_overlaps
from tests.chaos.plan import plan
from tests.chaos.processor import Processor
from tests.chaos.reconnects import reconnects, without_a_cause
from tests.chaos.recovery import Recovery
from tests.chaos.sentinel_broker import SentinelBroker
from tests.chaos.settings import CALLBACKS, LIMIT, LIMITED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.batch_book import Book, Found
    from tests.chaos.model import Exit, Fault, Limits, Run, Strike
    from tests.chaos.settings import Settings

_STEP_S = 0.02
_LOOK_S = 0.25
_BATCHES_END_S = 100.0
_MOST_BATCHES = 10_000
_BROKERS: dict[str, type[Broker]] = {
    "sentinels": SentinelBroker,
    "cluster": ClusterBroker,
    "embedded": EmbeddedBroker,
    "logins": LoginBroker,
}


@dataclass
class Outcome:
    """A finished run."""

    settings: Settings
    strikes: list[Strike]
    faults: list[Fault]
    exits: list[Exit]
    verdict: Verdict
    began: float
    stopped: float
    """When faults and publishing ended."""
    settled: float
    """When the last task was done."""
    recovery: dict[str, list[float]]
    audit: dict[str, dict[str, int]] = field(default_factory=dict)
    """Queue -> its ledger and counts."""
    batches: BatchVerdict = field(default_factory=BatchVerdict)
    dead: int = 0
    """The number of dead letters of all kinds."""
    poison_deaths: int = 0
    """Workers that poison has killed."""
    finishes: dict[int, int] = field(default_factory=dict)
    """Second of the run -> tasks finished in it."""
    publishes: dict[int, int] = field(default_factory=dict)
    overlaps: Overlaps = field(default_factory=Overlaps)
    processor: list[dict[str, float]] = field(default_factory=list)
    """For each minute, seconds of processor time by user."""

    @property
    def rate(self) -> float:
        """Confirmed tasks per second until the last end."""
        return self.verdict.tasks / max(self.settled - self.began, 0.001)


@dataclass
class _Stage:
    broker: Broker
    crew: Crew
    limits: Limits
    options: dict[str, float]


class Watcher:
    """Receives the progress of a run; ignores it by default."""

    def struck(self, fault: Fault, at_s: float) -> None:
        """Report an applied fault."""

    def progress(self, at_s: float, tail: ledger.Tail) -> None:
        """Report the progress."""

    def phase(self, text: str) -> None:
        """Report the begin of a phase."""


def strikes_of(settings: Settings) -> list[Strike]:
    """Return the schedule of a run."""
    seed, duration_s = settings.seed, settings.duration_s
    spans = {name: kind.span for name, kind in FAULTS.items()}
    strikes = plan(seed, settings.kinds, spans, duration_s, settings.fault_every_s)
    if settings.starve_every_s:  # a separate schedule, which does not change the other one
        strikes += plan(seed, [Starve.name], spans, duration_s, settings.starve_every_s)
    return sorted(strikes)


def carry_out(settings: Settings, watcher: Watcher | None = None) -> Outcome:
    """Carry out a complete run and return its outcome. Leaves no process behind."""
    watcher = watcher or Watcher()
    strikes = strikes_of(settings)
    kind = _BROKERS.get(settings.brokers, Broker)
    with kind(second=settings.brokers == "two") as broker:
        crew = Crew(settings, broker.url(settings.scheme), broker.options, broker.environment)
        try:
            return _Run(settings, strikes, broker, crew, watcher).carry_out()
        finally:
            crew.kill()
            broker.keep_logs(settings.directory)


class _Run:
    def __init__(
        self,
        settings: Settings,
        strikes: list[Strike],
        broker: Broker,
        crew: Crew,
        watcher: Watcher,
    ) -> None:
        self.settings, self.strikes, self.watcher = settings, strikes, watcher
        self.broker, self.crew = broker, crew
        self.tail = ledger.Tail(settings.directory)
        self.findings: list[str] = []
        self._next_look = 0.0
        self._processor = Processor()

    def carry_out(self) -> Outcome:
        """Carry out all phases."""
        settings, crew = self.settings, self.crew
        self.watcher.phase("starting workers")
        crew.start()
        stage = _Stage(self.broker, crew, settings.limits, dict(settings.options))
        crew.hold(wait=False)
        began = time.monotonic()
        nemesis = Nemesis(stage, self.strikes, began)
        self.watcher.phase("faults fall")
        try:
            until = began + settings.duration_s
            while time.monotonic() < until or not nemesis.done or self._wanted:
                fault = nemesis.step()
                if fault is not None:
                    self.watcher.struck(fault, fault.at - began)
                self._look(began)
                time.sleep(_STEP_S)
        finally:
            nemesis.undo_all()
        stopped = time.monotonic()
        self.watcher.phase("settling")
        crew.end_producers()
        self._drain(began)
        settled = self.tail.last_finish
        self._settle()
        self.watcher.phase("stopping workers")
        crew.end_workers()
        self.watcher.phase("judging")
        return self._judge(nemesis, began, stopped, settled)

    # -- while it runs

    @property
    def _wanted(self) -> bool:
        """Whether more tasks must be published."""
        return self.tail.confirmed < self.settings.least_tasks and bool(self.crew.producers)

    def _look(self, began: float) -> None:
        self.crew.supervise()
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            self.tail.look()
            self.crew.hold(wait=len(self.tail.outstanding) > self.settings.backlog)
            self.watcher.progress(now - began, self.tail)
            servers = [server.pid for server in self.broker.servers if server.running]
            self._processor.look(now - began, {"servers": servers, **self.crew.pids()})

    def _drain(self, began: float) -> None:
        """Wait until every confirmed task is done, or until there is no progress for long."""
        last = time.monotonic()
        left = -1
        while True:
            self.crew.supervise()
            self.tail.look()
            self.watcher.progress(time.monotonic() - began, self.tail)
            if len(self.tail.outstanding) != left:
                left, last = len(self.tail.outstanding), time.monotonic()
            if not left or time.monotonic() - last > self.settings.drain_s:
                return
            time.sleep(_LOOK_S)

    def _settle(self) -> None:
        """Wait until the broker is idle: dead letters are stored, and no message is held."""
        if not self.settings.reliq:
            return
        reason = self._until(self._restless, 60.0)
        if reason:
            self.findings.append(f"not at rest 60 s after the last task: {reason}")
        reason = self._until(self._unended, _BATCHES_END_S)
        if reason:
            self.findings.append(f"{_BATCHES_END_S:g} s later: {reason}")
        self._until(self._restless, 60.0)  # callbacks; the check of the keys reports any rest
        reason = self._until(self._haunted, 60.0)
        if reason:
            self.findings.append(f"60 s later still listed: {reason}")

    def _until(self, wrong: Callable[[], str], timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while True:
            self.crew.supervise()
            reason = wrong()
            if not reason or time.monotonic() >= deadline:
                return reason
            time.sleep(_LOOK_S)

    def _restless(self) -> str:
        for view in self.broker.views():
            with Inspector(view.url) as inspector:
                for queue in set(self.settings.queues) & set(inspector.queues()):
                    status = inspector.status(queue)
                    left = {name: getattr(status, name) for name in ("ready", "delayed", "unacked")}
                    if any(left.values()):
                        return f"{queue} at {view.url}: {left}"
        return ""

    def _unended(self) -> str:
        """Return a batch that has not ended or has due callbacks, in words; "" if none.

        Lost jobs are found after a while.
        """
        if not self.settings.has_batches:
            return ""
        for view in self.broker.views():
            with Inspector(view.url) as inspector:
                for info in inspector.batches(limit=_MOST_BATCHES):
                    if info.ended_ms is None or info.due:
                        left = {state: number for state, number in info.counts.items() if number}
                        return f"{view.where}batch {info.id} is {info.stage}: {left}, {info.due}"
        return ""

    def _haunted(self) -> str:
        """Return a listed consumer that is dead, and that the others must have detected."""
        living = {slot.worker.pid for slot in self.crew.slots if slot.worker is not None}
        for view in self.broker.views():
            with view.client() as client:
                if listed := keys.haunted(client, living):
                    return listed
        return ""

    # -- the end

    def _judge(self, nemesis: Nemesis, began: float, stopped: float, settled: float) -> Outcome:
        settings, crew = self.settings, self.crew
        faults = [*nemesis.faults, *self.broker.by_itself(nemesis.faults)]
        verdict = Verdict()
        recovery = Recovery(faults, stopped)
        finishes: dict[int, int] = {}
        publishes: dict[int, int] = {}
        poisoned = [
            run
            for history in histories(
                line
                for line in ledger.read(settings.directory)
                if ledger.kind_of(line.id) == ledger.POISON
            ).values()
            for run in history.runs
        ]
        blame = Blame(faults, crew.exits, poisoned, settings.limits)
        limited: list[Run] = []
        books = batch_book.books(ledger.read(settings.directory))
        cancelled = {book.id for book in books.values() if book.cancelling is not None}
        # A message that is moved to another broker may get another tag there.
        one_tag = settings.reliq and settings.brokers != "two"
        for lines in ledger.in_parts(settings.directory):
            for line in lines:
                if line.event in (ledger.FINISHED, ledger.CONFIRMED):
                    counts = finishes if line.event == ledger.FINISHED else publishes
                    second = int(line.at - began)
                    counts[second] = counts.get(second, 0) + 1
            tasks = histories(lines).values()
            batch_book.enter(books, tasks)
            limited += [run for task in tasks if task.queue == LIMITED for run in task.runs]
            verdict.add(check(tasks, blame, settings.limits, one_tag=one_tag, cancelled=cancelled))
            recovery.add(tasks)
        in_force = LimitsInForce(LIMIT, faults, settings.limits.in_flight)
        overlaps = check_overlaps(limited, in_force, blame)
        verdict.findings += self.findings + crew.findings + overlaps.findings
        if len(verdict.unrecorded) > blame.kills:
            verdict.lost += verdict.unrecorded
        outcome = Outcome(
            settings,
            self.strikes,
            faults,
            crew.exits,
            verdict,
            began,
            stopped,
            settled,
            recovery.samples(),
            finishes=finishes,
            publishes=publishes,
            poison_deaths=len(crew.deaths),
            processor=self._processor.minutes(),
            overlaps=overlaps,
        )
        if settings.brokers == "cluster":
            lost = reconnects(settings.directory)
            verdict.findings += without_a_cause(lost, faults, settings.limits)
        if settings.reliq:
            self._inspect(outcome, books, blame)
        return outcome

    def _inspect(self, outcome: Outcome, books: dict[str, Book], blame: Blame) -> None:
        """Inspect the idle brokers: dead letters, the audit, batches, and every key."""
        verdict = outcome.verdict
        batches: list[dict[str, Found]] = []
        callbacks = 0
        dead: list[tuple[str | None, str]] = []
        for where, url, connect in self.broker.views():
            try:
                with Inspector(url) as inspector:
                    for queue in set(self.settings.queues) & set(inspector.queues()):
                        dead_letters = inspector.dead_letters(queue, None)
                        dead += [
                            (dead_letter.id, dead_letter.reason) for dead_letter in dead_letters
                        ]
                    audit = inspector.audit().whole()
                    batches.append(batch_book.look(inspector, where, books))
                    verdict.findings += [
                        f"{where}batch {result.batch} does not balance: {result}"
                        for result in inspector.audit_batches()
                        if not result.balanced
                    ]
            except (ReliqError, redis.RedisError) as exc:
                verdict.findings.append(f"{where}the broker could not be inspected: {exc!r}")
                continue
            for result in audit:
                outcome.audit[where + result.queue] = {**result.ledger, **result.counts}
                callbacks += result.ledger["published"] if result.queue == CALLBACKS else 0
                if not result.balanced:
                    verdict.findings.append(
                        f"{where}the ledger of {result.queue!r} does not balance: "
                        f"{result.difference} ({result.ledger}, {result.counts})"
                    )
            with connect() as client:
                unexplained = self.broker.unexplained(client)
                verdict.findings += [where + wrong for wrong in unexplained]
        outcome.dead = len(dead)
        check_dead(verdict, dead)
        outcome.batches = BatchChecker(books, blame, self.settings.limits).check(batches)
        verdict.findings += outcome.batches.findings
        self._count_callbacks(outcome, callbacks)

    def _count_callbacks(self, outcome: Outcome, messages: int) -> None:
        """Report a difference between messages of callbacks and callbacks that have run."""
        # A callback that moves from one broker to the other is published at both.
        ran = outcome.batches.callbacks.total()
        if messages != ran and self.settings.brokers != "two":
            outcome.verdict.findings.append(
                f"{messages} messages of callbacks were published, and {ran} callbacks have run"
            )


def new_directory(path: Path) -> Path:
    """Create the directory of a run; reject one with the ledger of an earlier run."""
    path.mkdir(parents=True, exist_ok=True)
    if ledger.files(path):
        raise FileExistsError(f"{path} holds the ledger of another run")
    return path
