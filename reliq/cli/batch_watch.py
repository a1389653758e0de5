"""``reliq batch watch``: the progress of a batch until its end."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from reliq.errors import NotFound
from reliq.printable import plain
from reliq.units import per_second

from . import console as out
from .options import batch_argument, interval_option, on_brokers
from .options import duration as seconds
from .target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reliq.admin import Inspector

Row = dict[str, Any]

# The latest failures in a line of JSON.
_SHOWN = 10


def stage_of(row: Row) -> str:
    """Return the stage of a batch, and whether it is cancelled."""
    return f"{row['stage']}, cancelled" if row["cancelled_ms"] else str(row["stage"])


def _read(inspector: Inspector, batch: str) -> Row:
    info = inspector.batch(batch)
    failures = inspector.job_failures(batch, _SHOWN) if info.bad else []
    listed = {"failures": [item._asdict() for item in failures]}
    more = {"more_failures": info.bad > len(failures)}
    return out.of_broker(inspector.broker, info) | listed | more


def readings(
    target: Target,
    batch: str,
    interval: float,
    patience: float,
    on_outage: Callable[[str], None],
) -> Iterator[Row]:
    """Yield the batch, with the rate since the previous look, until it has ended.

    Calls *on_outage* at the first failed look of an outage. Raises Refused if no broker has the
    batch, and after *patience* seconds without an answer.
    """
    gathered = target.gather(lambda there: (there.url, _read(there, there.batch_id(batch))))
    url, row = gathered.require_some()[0]
    its_own, name = Target((url,), target.options), row["id"]
    answered, lost = time.monotonic(), False
    yield {**row, "rate": None}
    while not row["ended_ms"]:
        time.sleep(interval)
        there = its_own.gather(lambda inspector: _read(inspector, name))
        now = time.monotonic()
        if there.answers:
            before, row = row["done"], there.answers[0]
            yield {**row, "rate": max(row["done"] - before, 0) / max(now - answered, 1e-6)}
            answered, lost = now, False
            continue
        _, error = there.failures[0]
        if isinstance(error, NotFound) or now - answered > patience:
            there.complain()
        if not lost:
            lost = True
            on_outage(str(error))


def _report(error: str) -> None:
    click.echo(plain(error), err=True)


def _line(row: Row) -> str:
    """Return one look as a line of text."""
    counts = [f"{row['counts'][state]:,} {state}" for state in ("working", "failed", "error")]
    rate = "" if row["rate"] is None else f", {per_second(row['rate'])}/s"
    text = f"{row['done']:,} of {row['total']:,} done ({row['percent']:g} %){rate}"
    return f"{plain(row['name'] or row['id'])}: {text}, {', '.join(counts)}, {stage_of(row)}"


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
    """Follow a batch until it has ended: its progress and rate.

    With --json, each measurement is one line. To list the failures, use: reliq batch show. If
    the broker stops answering, the command retries for --patience.

    Exits with 0 if all jobs succeeded, with 1 if one did not or the batch was cancelled, and
    with 2 if the batch does not exist or its broker does not answer.

    \b
    Examples:
      reliq batch watch 5f0c6c1d
      reliq batch watch 5f0c6c1d --interval 10 --json
    """
    console = out.Console(highlight=False)
    drawn = console.is_terminal and not target.as_json
    last: Row = {}
    with out.Progress(console=console, disable=not drawn) as bar:
        task = bar.add_task("", total=None)
        for row in readings(target, batch, interval, patience, _report):
            if target.as_json:
                click.echo(json.dumps(row, default=str))
            elif drawn:
                name = plain(row["name"] or row["id"]).replace("[", r"\[")
                # A batch without jobs has a bar without an end.
                bar.update(
                    task, description=name, completed=row["done"], total=row["total"] or None
                )
            elif not last or (row["counts"], row["stage"]) != (last["counts"], last["stage"]):
                click.echo(_line(row))
            last = row
    if drawn:
        click.echo(_line(last))
    good = last["counts"]["succeeded"] == last["total"] and not last["cancelled_ms"]
    sys.exit(0 if good else 1)
