"""The command line: figures, rounds, and files for the results."""

from __future__ import annotations

import shlex
import signal
import sys
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from benchmarks import cpu, figures, installing, machine, peers, results, servers, summary
from benchmarks.measuring import Measuring
from benchmarks.places import Places
from benchmarks.report import write_page, write_readme
from benchmarks.setting import LARGEST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.model import Outcome
    from benchmarks.results import Run

WIDTH_OF_A_FILE = 200


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help=f"Measure only figures whose name starts with NAME; =NAME measures exactly that one "
    f"(repeatable). Figures: {', '.join(figure.name for figure in figures.ALL)}.",
)
@click.option("--core", is_flag=True, help="Measure only the most important figures.")
@click.option(
    "--without",
    multiple=True,
    metavar="PEER",
    help=f"Leave out this peer (repeatable). Peers: {', '.join(peers.ALL)}.",
)
@click.option("--rounds", "wanted", default=5, show_default=True, help="Rounds per figure.")
@click.option("--scale", default=1.0, show_default=True, help="Factor for the sizes of samples.")
@click.option(
    "--largest",
    default=LARGEST,
    show_default=True,
    help="Maximum number of messages in the growth and restore figures.",
)
@click.option(
    "--scheme",
    default="reliq",
    show_default=True,
    help="URL scheme to measure in the place of reliq. 'redis' compares Kombu with itself, which "
    "shows how far a ratio varies by chance.",
)
@click.option(
    "--appendfsync",
    type=click.Choice(["no", "everysec", "always"]),
    default="no",
    show_default=True,
    help="Run Redis with an append-only file and this sync policy; 'no' runs it without the file.",
)
@click.option(
    "--redis-server",
    "executable",
    default=None,
    metavar="FILE",
    help="The redis-server to start. Default: the one on PATH, else that of an installed wheel.",
)
@click.option("--install", is_flag=True, help="Install RabbitMQ with apt-get if it is missing.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Write the results to this JSON file.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Write a Markdown page to this file, and JSON, pictures and profiles to a folder beside "
    "it.",
)
@click.option(
    "--readme",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Replace the benchmark table in this file.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Measure nothing. Write the report and the README table from this JSON file.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue an interrupted run at the same commit: measure only the figures that its JSON "
    "file lacks.",
)
def main(
    only: Sequence[str],
    core: bool,
    without: Sequence[str],
    wanted: int,
    scale: float,
    largest: int,
    scheme: str,
    appendfsync: str,
    executable: str | None,
    install: bool,
    json_file: Path | None,
    report: Path | None,
    readme: Path | None,
    source: Path | None,
    resume: bool,
) -> None:
    """Compare reliq with other transports on this machine, and print the ratios.

    The command starts its own servers on free loopback ports: one redis-server for each transport
    over Redis, and RabbitMQ if it is installed. Do not use the machine during the run.
    """
    if source is not None:
        _write(results.read(source), json_file, report, readme, [])
        return
    chosen = figures.select(only, core)
    if not chosen:
        raise click.BadParameter("no figure has that name", param_hint="--only")
    commit = machine.commit()
    kept = json_file or (_results_of(report) if report is not None else None)
    earlier = _interrupted(kept, commit, wanted, scale) if resume else None
    measured = {outcome.row.key for outcome in earlier.outcomes} if earlier else set()
    missing = [f for f in chosen if not measured.intersection(row.key for row in f.rows)]
    unknown = set(without) - set(peers.ALL)
    if unknown:
        raise click.BadParameter(f"unknown peer: {', '.join(unknown)}", param_hint="--without")
    known = {
        name: replace(peer, scheme=scheme, label=scheme) if name == peers.RELIQ else peer
        for name, peer in peers.ALL.items()
        if name not in without
    }
    left_out = [f"{peers.ALL[name].label}: left out by --without" for name in without]
    if install and (why_not := installing.install()):
        left_out.append(why_not)
    # Ending the run also ends its servers and workers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(stderr=True)
    surroundings = machine.describe()
    with closing(Places(executable or servers.find_executable(), appendfsync)) as places:
        measuring = Measuring(places, known, console, scale, largest)

        def run_of(sections: Mapping[str, Sequence[Outcome]]) -> Run:
            absent = [f"{name}: {why}" for name, why in places.missing.items()]
            run = results.Run(
                command=shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
                rounds=wanted,
                scale=scale,
                labels={name: peer.label for name, peer in known.items()},
                surroundings=surroundings | places.describe(),
                left_out=left_out + absent,
                failures=measuring.failures,
                sections=sections,
                commit=commit,
            )
            return run if earlier is None else results.merge(earlier, run, figures.order())

        def keep(sections: Mapping[str, Sequence[Outcome]]) -> None:
            if kept is not None:
                results.write(run_of(sections), kept)

        sections = measuring.run(missing, wanted, keep)
        profiles = []
        if report is not None and any(figure in cpu.FIGURES for figure in chosen):
            profiles = measuring.profiles(_beside(report))
        run = run_of(sections)
    _print(run)
    _write(run, json_file, report, readme, profiles)
    if run.failures:
        sys.exit(1)


def _interrupted(kept: Path | None, commit: str, rounds: int, scale: float) -> Run | None:
    """Return the interrupted run in *kept*, if any; refuse other commits, rounds or scales."""
    if kept is None:
        raise click.UsageError(
            "--resume needs --json or --report: the results of the interrupted run"
        )
    if not kept.exists():
        return None
    earlier = results.read(kept)
    had = (earlier.commit, earlier.rounds, earlier.scale)
    if had != (commit, rounds, scale) or not commit or "changes" in commit:
        raise click.UsageError(
            f"{kept} is of commit {earlier.commit} (rounds {earlier.rounds}, scale "
            f"{earlier.scale:g}), this is {commit or 'no clone'} (rounds {rounds}, scale "
            f"{scale:g}): check out that commit, without changes, or omit --resume"
        )
    return earlier


def _beside(report: Path) -> Path:
    return report.with_suffix("")


def _results_of(report: Path) -> Path:
    return _beside(report) / "results.json"


def _write(
    run: Run,
    json_file: Path | None,
    report: Path | None,
    readme: Path | None,
    profiles: Sequence[Path],
) -> None:
    if json_file is not None:
        results.write(run, json_file)
    if report is not None:
        folder = _beside(report)
        results.write(run, _results_of(report))
        pictures = []
        if find_spec("matplotlib") is not None:
            from benchmarks import plots

            pictures = plots.draw(run, folder)
        else:
            click.echo("no pictures: matplotlib is not installed", err=True)
        profiles = profiles or sorted(folder.glob("profile-*.txt"))
        write_page(run, report, [*pictures, *profiles])
    if readme is not None:
        write_readme(run, readme)


def _print(run: Run) -> None:
    screen = Console() if sys.stdout.isatty() else Console(width=WIDTH_OF_A_FILE)
    for name, outcomes in run.sections.items():
        for limits in (False, True):
            lines = summary.table(outcomes, run.labels, limits)
            if not lines:
                continue
            table = Table(*lines[0], title=f"{name}{', raw limits' if limits else ''}")
            for cells in lines[1:]:
                table.add_row(*cells, style="yellow" if cells[-1] == "miss" else "")
            screen.print(table)
    for text in summary.shortfalls(run.outcomes, run.labels):
        click.echo(f"missed: {text}")
    for text in run.left_out:
        click.echo(f"not measured: {text}")
