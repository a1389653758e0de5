"""``reliq batch watch``: the progress of a batch until its end."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from reliq.errors import NotFound
from reliq.printable import plain
from reliq.units import duration

from . import console as out
from .options import batch_argument, interval_option, on_brokers
from .options import duration as seconds
from .target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from reliq.admin import BatchInfo, Inspector, JobFailure


# Maximum failures shown at the first look, and at each later look.
_AT_FIRST = 10
_AT_ONCE = 100
# Looks over which the rate is measured.
_LOOKS = 10


@dataclass(frozen=True)
class Look:
    """A batch at one instant, and its new failures."""

    broker: str
    info: BatchInfo
    rate: float | None
    """Recently ended jobs per second; None at the first look."""
    failures: list[JobFailure]
    """New failures, oldest first."""
    more: bool
    """Whether there are further new failures, which are not shown."""


class _Following:
    """Compares the looks at one batch of one broker."""

    def __init__(self, batch: str) -> None:
        self._batch = batch
        self._known_ms = 0
        self._known: set[str] = set()
        self._done: deque[tuple[float, int]] = deque(maxlen=_LOOKS)

    def look(self, inspector: Inspector) -> Look:
        if not self._done:
            self._batch = inspector.batch_id(self._batch)
        info = inspector.batch(self._batch)
        most = _AT_ONCE if self._done else _AT_FIRST
        failures = self._failures(inspector, most) if info.bad else []
        more = len(failures) > most
        now = time.monotonic()
        rate = None
        if self._done:
            at, done = self._done[0]
            rate = max(info.done - done, 0) / max(now - at, 1e-6)
        self._done.append((now, info.done))
        return Look(inspector.broker, info, rate, failures[:most][::-1], more)

    def _failures(self, inspector: Inspector, most: int) -> list[JobFailure]:
        """Return at most *most* + 1 new failures, newest first."""
        found = [
            item
            for item in inspector.job_failures(self._batch, most + 1)
            if item.at_ms > self._known_ms
            or (item.at_ms == self._known_ms and item.job not in self._known)
        ]
        if found and found[0].at_ms > self._known_ms:
            self._known_ms, self._known = found[0].at_ms, set()
        self._known |= {item.job for item in found if item.at_ms == self._known_ms}
        return found


def looks(
    target: Target,
    batch: str,
    interval: float,
    patience: float,
    away: Callable[[str], None],
) -> Iterator[Look]:
    """Yield looks at the batch until it has ended; call *away* while its broker is unreachable.

    Raises Refused if no broker has the batch, and after *patience* seconds without an answer.
    """
    following: dict[str, _Following] = {}

    def look(inspector: Inspector) -> tuple[str, Look]:
        one = following.setdefault(inspector.url, _Following(batch))
        return inspector.url, one.look(inspector)

    found = target.gather(look)
    url, first = found.require_some()[0]
    its_own = Target((url,), target.options)
    yield first
    ended, answered = bool(first.info.ended_ms), time.monotonic()
    while not ended:
        time.sleep(interval)
        found = its_own.gather(look)
        if found.found:
            answered = time.monotonic()
            _, last = found.found[0]
            ended = bool(last.info.ended_ms)
            yield last
        elif (
            any(isinstance(error, NotFound) for _, error in found.failures)
            or time.monotonic() - answered > patience
        ):
            found.complain()
        else:
            away(str(found.failures[0][1]))


def line(look: Look) -> str:
    """Return one look as a line of text."""
    info = look.info
    counts = [f"{info.counts[state]:,} {state}" for state in ("working", "failed", "error")]
    rate = "" if look.rate is None else f", {out.rate(look.rate).plain}/s"
    stage = "cancelled" if info.cancelled_ms and not info.ended_ms else info.stage
    said = f"{info.done:,} of {info.total:,} done ({info.percent:g} %){rate}, {', '.join(counts)}"
    return f"{plain(info.name or info.id)}: {said}, {stage}"


def _news(look: Look) -> Iterator[str]:
    if look.more:
        yield f"more jobs failed; to list them: reliq batch show {plain(look.info.id)}"
    yield from (f"{plain(item.job)} failed: {plain(item.reason)}" for item in look.failures)


# -- output for a terminal and for a pipe


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[Look], None]]:
    columns: list[Any] = [
        out.TextColumn("{task.description}"),
        out.BarColumn(),
        out.MofNCompleteColumn(),
        out.TextColumn("{task.fields[said]}"),
    ]
    with out.Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=None, said="")

        def draw(look: Look) -> None:
            for text in _news(look):
                progress.console.print(out.Text(text, "red"))
            info = look.info
            left = info.total - info.done
            ends_in = f", {duration(left / look.rate)} left" if look.rate and left else ""
            rate = "" if look.rate is None else f"{out.rate(look.rate).plain}/s, "
            name = plain(info.name or info.id).replace("[", r"\[")
            said = f"{rate}{info.bad:,} failed{ends_in}"
            # A batch without jobs has a bar without an end.
            total = info.total or None
            progress.update(task, description=name, completed=info.done, total=total, said=said)
            progress.refresh()

        yield draw
    # The bar stays above the last line of output.


@contextmanager
def _lines(as_json: bool) -> Iterator[Callable[[Look], None]]:
    """Print a line for each look as JSON, or a line of text for each change."""
    before: list[str] = []

    def show(look: Look) -> None:
        if as_json:
            failures = [item._asdict() for item in look.failures]
            row = out.of_broker(look.broker, look.info) | {"rate": look.rate, "failures": failures}
            click.echo(json.dumps({**row, "more_failures": look.more}, default=str))
            return
        for text in _news(look):
            click.echo(text)
        counts = f"{look.info.counts}{look.info.stage}"
        if [counts] != before:
            before[:] = [counts]
            click.echo(line(look))

    yield show


@click.command()
@batch_argument
@interval_option(0.1, 3600, 1.0, "Seconds between measurements.")
@click.option(
    "--patience",
    type=seconds,
    default="1m",
    show_default=True,
    help="Exit after this time without an answer from the broker.",
)
@on_brokers
def watch(target: Target, batch: str, interval: float, patience: float) -> None:
    """Follow a batch until it has ended: its progress, rate and failures.

    With --json, each measurement is one line. If the broker stops answering, the command
    retries for --patience.

    Exits with 0 if all jobs succeeded, with 1 if one did not or the batch was cancelled, and
    with 2 if the batch does not exist or its broker does not answer.

    \b
    Examples:
      reliq batch watch 5f0c6c1d
      reliq batch watch 5f0c6c1d --interval 10 --json
    """
    console = out.Console(highlight=False)
    told: list[str] = []

    def away(error: str) -> None:
        if [error] != told:
            told[:] = [error]
            if drawn:
                console.print(out.Text(plain(error), "bold red"))
            else:
                click.echo(plain(error), err=True)

    drawn = console.is_terminal and not target.as_json
    last = None
    with _bar(console) if drawn else _lines(target.as_json) as show:
        for last in looks(target, batch, interval, patience, away):
            show(last)
            told.clear()
    if last is None:
        return
    if drawn:
        console.print(out.Text(line(last), "red" if last.info.bad else "green"))
    good = last.info.counts["succeeded"] == last.info.total and not last.info.cancelled_ms
    sys.exit(0 if good else 1)
