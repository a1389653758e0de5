"""What ``reliq demo`` shows: events and a progress bar while it runs, then the outcome."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from .run import Outcome


class Screen:
    """The Watcher of the demo: one bar per run, events above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._name = ""
        self._progress: Progress | None = None

    def say(self, text: str) -> None:
        """Print one event."""
        self._console.print(f"{self._name}: {text}", markup=False, highlight=False)

    def progress(self, finished: int) -> None:
        """Move the bar."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=finished)

    @contextmanager
    def watching(self, name: str, total: int) -> Iterator[None]:
        """Show a bar of *total* tasks for the run called *name* until the block ends."""
        self._name = name
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self._console) as progress:
            progress.add_task(f"{name}: tasks run", total=total)
            self._progress = progress
            try:
                yield
            finally:
                self._progress = None

    def show(self, outcomes: Sequence[Outcome]) -> None:
        """Print the table, and the ledger of each run that has one."""
        table = Table(title="outcome", title_justify="left")
        table.add_column()
        for outcome in outcomes:
            table.add_column(outcome.name, justify="right")
        for label, value in ROWS:
            table.add_row(label, *map(value, outcomes))
        self._console.print(table)
        for outcome in outcomes:
            self._console.print(audit_line(outcome), markup=False, highlight=False)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


ROWS: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("published", lambda o: str(o.published)),
    ("ran", lambda o: str(o.ran)),
    ("lost", lambda o: str(o.lost)),
    ("ran twice (finished more than once)", lambda o: str(o.finished_twice)),
    ("held by the worker when it was killed", lambda o: str(o.held_at_kill)),
    ("  of these running", lambda o: str(o.running_at_kill)),
    ("  ran again after the kill: was running when killed", lambda o: str(o.ran_again)),
    ("recovery: kill until the first of these ran", lambda o: _seconds(o.first_recovered_s)),
    ("recovery: kill until all of these ran", lambda o: _seconds(o.all_recovered_s)),
    ("words counted", lambda o: f"{o.words:,} of {o.words_expected:,}"),
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
