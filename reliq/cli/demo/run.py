"""One run of the demo over one broker, with its output: publish, kill, recover, count."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from reliq.admin import AuditResult, Inspector

from .record import Record, Settings, hold_file, now_ms
from .worker import PROCESSES, publish, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from .worker import Process

BOOTS_WITHIN_S = 60.0
AIMS_WITHIN_S = 5.0
SETTLES_WITHIN_S = 10.0
# The acks of earlier tasks arrive while each process is held in a task for this long.
MARGIN_MS = 500.0
# The duration of the long task, in both runs of a comparison: twice their visibility_timeout.
LONG_S = 10.0


@dataclass(frozen=True, slots=True)
class Side:
    """A broker for a run. *patience_s*: silence after which missing tasks count as lost."""

    name: str
    url: str
    transport_options: Mapping[str, Any]
    queue: str
    patience_s: float
    compared: bool  # then it ends with one more task, of LONG_S

    @property
    def has_ledger(self) -> bool:
        """Whether the transport is reliq."""
        return self.url.startswith("reliq")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run. Times are in seconds; None: never."""

    name: str
    published: int
    ran: int
    lost: int
    finished_twice: int
    held_at_kill: int
    running_at_kill: int
    ran_again: int
    first_recovered_s: float | None
    all_recovered_s: float | None
    total_s: float
    audit: AuditResult | None
    long_runs: int | None = None

    @property
    def ok(self) -> bool:
        """Whether no task was lost or finished twice, and the ledger (if any) balances."""
        balanced = self.audit is None or self.audit.balanced
        return not self.lost and not self.finished_twice and balanced

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "ok": self.ok}


class Screen(Progress):
    """The display of the run called *name*: a progress bar with events above it."""

    def __init__(self, console: Console, name: str, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        super().__init__(*columns, TimeElapsedColumn(), console=console)
        self._name, self._bar = name, self.add_task(f"{name}: tasks run", total=total)

    def say(self, text: str) -> None:
        """Print one event."""
        self.console.print(f"{self._name}: {text}", markup=False, highlight=False)

    def progress(self, finished: int) -> None:
        """Move the bar."""
        self.update(self._bar, completed=finished)


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print the table, and the audit line of each run."""
    table = Table(title="outcome", title_justify="left")
    table.add_column()
    for outcome in outcomes:
        table.add_column(outcome.name, justify="right")
    for label, value in ROWS:
        table.add_row(label, *map(value, outcomes))
    if outcomes[0].long_runs is not None:
        runs = (str(outcome.long_runs) for outcome in outcomes)
        table.add_row(f"one more task, of {LONG_S:g} s: times run", *runs)
    console.print(table)
    for outcome in outcomes:
        console.print(audit_line(outcome), markup=False, highlight=False)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


ROWS: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("published", lambda o: str(o.published)),
    ("ran", lambda o: str(o.ran)),
    ("lost", lambda o: str(o.lost)),
    ("ran twice (finished more than once)", lambda o: str(o.finished_twice)),
    ("held by the worker when it was killed", lambda o: str(o.held_at_kill)),
    ("  of these running", lambda o: str(o.running_at_kill)),
    ("  started again after the kill", lambda o: str(o.ran_again)),
    ("recovery: kill until the first of these ran", lambda o: _seconds(o.first_recovered_s)),
    ("recovery: kill until all of these ran", lambda o: _seconds(o.all_recovered_s)),
    ("whole run", lambda o: _seconds(o.total_s)),
)


def audit_line(outcome: Outcome) -> str:
    """Return the ledger of *outcome* as one equation."""
    audit = outcome.audit
    if audit is None:
        return f"{outcome.name} audit: this transport keeps no ledger"
    counts = {**audit.ledger, **audit.counts}
    published = counts.pop("published", 0)
    places = ("acked", "expired", "purged", "dropped", "moved", *audit.counts)
    parts = [f"{place} {counts[place]}" for place in dict.fromkeys(places) if counts.get(place)]
    verdict = "balanced" if audit.balanced else f"OFF BY {audit.difference}"
    return f"{outcome.name} audit: published {published} = {' + '.join(parts) or '0'}: {verdict}"


class DemoRun:
    """One side from the first publish to the last count."""

    def __init__(self, side: Side, tasks: int, folder: Path, watcher: Screen) -> None:
        self._side = side
        self._total = tasks
        self._folder = folder
        self._watcher = watcher
        self._record_path = folder / "record"
        self._record = Record(self._record_path)

    def run(self) -> Outcome:
        """Do the run. All its processes have ended when this returns or raises."""
        began = time.monotonic()
        with ExitStack() as stack:
            first = worker(self._settings("first"), self._folder, stack)
            publish(self._settings("publisher"), self._folder)
            self._watcher.say(f"{self._total} tasks published")
            self._wait(lambda: "first" in self._record.ready, BOOTS_WITHIN_S, first)
            self._watcher.say(f"the first worker runs (pid {first.pid}, {PROCESSES} processes)")
            self._wait(lambda: self._record.finished >= self._total // 2, None, first)
            hold = hold_file(self._record_path)
            hold.touch()
            self._wait(self._in_the_middle, AIMS_WITHIN_S, first)
            killed = now_ms()
            first.kill()
            hold.unlink()
            self._record.refresh()
            running, held = set(self._record.running("first")), self._record.held("first")
            self._watcher.say(
                f"SIGKILL to the first worker: it held {len(held)} tasks and was running "
                f"{len(running)} of them; {self._record.finished} had finished"
            )
            second = worker(self._settings("second"), self._folder, stack)
            self._finish(second, held, killed)
            audit = self._settle()
            if self._side.compared:
                self._run_long(second)
            second.stop()
        self._record.refresh()
        return self._outcome(killed, running, held, audit, time.monotonic() - began)

    def _settings(self, process: str) -> Settings:
        side = self._side
        return Settings(
            process=process,
            broker_url=side.url,
            transport_options=side.transport_options,
            queue=side.queue,
            record=str(self._record_path),
            tasks=self._total,
        )

    def _wait(
        self, condition: Callable[[], bool], timeout_s: float | None, process: Process
    ) -> bool:
        """Return whether *condition* came true in time (None: before patience_s of silence)."""
        longest_s = self._side.patience_s if timeout_s is None else timeout_s
        began = time.monotonic()
        while not condition():
            process.check()
            time.sleep(0.02)
            if self._record.refresh():
                self._watcher.progress(min(self._record.finished, self._total))
                if timeout_s is None:
                    began = time.monotonic()
            if time.monotonic() - began > longest_s:
                return False
        return True

    def _in_the_middle(self) -> bool:
        """Whether every process is held in a task, and the acks of earlier tasks have arrived.

        Every broker runs a task again whose ack is in transit when the worker is killed. The demo
        avoids that case: "ran twice" never counts it.
        """
        self._record.refresh()
        running = self._record.running("first").values()
        latest = max((history.started[-1][0] for history in running), default=0.0)
        return len(running) == PROCESSES and now_ms() - latest >= MARGIN_MS

    def _finish(self, second: Process, held: set[int], killed: float) -> None:
        self._wait(lambda: "second" in self._record.ready, BOOTS_WITHIN_S, second)
        self._watcher.say(f"a second worker runs (pid {second.pid})")

        def all_ran() -> bool:
            return self._record.finished >= self._total

        self._wait(lambda: all_ran() or bool(self._recovered_s(held, killed)), None, second)
        back = self._recovered_s(held, killed)
        if back:
            self._watcher.say(f"{min(back):.1f} s after the kill, a task that it held restarts")
            self._wait(all_ran, None, second)

    def _recovered_s(self, held: set[int], killed: float) -> list[float]:
        """Return the time from the kill to the next start, for each held task that has one."""
        started = (self._record.tasks[task].started for task in held)
        again = ([at for at, worker in events if worker == "second"] for events in started)
        return [(times[0] - killed) / 1000 for times in again if times]

    def _settle(self) -> AuditResult | None:
        """Wait until the broker holds no live message, then return the audit of the queue."""
        if not self._side.has_ledger:
            time.sleep(1.0)  # an ack may still be in transit
            return None
        deadline = time.monotonic() + SETTLES_WITHIN_S
        with Inspector(self._side.url, dict(self._side.transport_options)) as inspector:

            def holds() -> bool:
                status = inspector.status(self._side.queue)
                return bool(status.ready or status.delayed or status.unacked)

            while holds() and time.monotonic() < deadline:
                time.sleep(0.05)
            return next(result for result in inspector.audit() if result.queue == self._side.queue)

    def _run_long(self, process: Process) -> None:
        """Run the long task, which is held like those at the kill."""
        hold = hold_file(self._record_path)
        hold.touch()
        publish(replace(self._settings("long"), first=self._total, tasks=1), self._folder)
        self._watcher.say(f"one more task runs, for {LONG_S:g} s")
        self._wait(lambda: False, LONG_S, process)
        hold.unlink()
        self._wait(lambda: self._record.finished > self._total, SETTLES_WITHIN_S, process)

    def _outcome(
        self,
        killed: float,
        running: set[int],
        held: set[int],
        audit: AuditResult | None,
        total_s: float,
    ) -> Outcome:
        tasks = self._record.tasks
        long = tasks.pop(self._total, None)
        ran = sum(bool(history.finished) for history in tasks.values())
        back = self._recovered_s(held, killed)
        return Outcome(
            name=self._side.name,
            published=self._total,
            ran=ran,
            lost=self._total - ran,
            finished_twice=sum(len(history.finished) > 1 for history in tasks.values()),
            held_at_kill=len(held),
            running_at_kill=len(running),
            ran_again=sum(len(tasks[task].started) > 1 for task in running),
            first_recovered_s=min(back, default=None),
            all_recovered_s=max(back) if len(back) == len(held) and back else None,
            total_s=total_s,
            audit=audit,
            long_runs=len(long.started) if long else None,
        )
