"""The command line: duration, rate, and the folder of the results."""

from __future__ import annotations

import shlex
import sys
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import click

from tests.chaos.cli import surroundings
from tests.chaos.run import new_directory
from tests.soak import report, verdict
from tests.soak.run import carry_out
from tests.soak.settings import Settings

SAMPLES = 720
"""The approximate maximum of samples. More would cost time, and the picture cannot show them."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hours", default=2.0, show_default=True, help="Duration; 0.05 is three minutes.")
@click.option("--rate", default=60.0, show_default=True, help="Tasks per second.")
@click.option("--idle", default=50, show_default=True, help="Workers without tasks.")
@click.option(
    "--reconnect-every",
    default=60.0,
    show_default=True,
    help="Seconds between cuts of all connections.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write soak.json, soak.svg, the ledger and logs to this folder.",
)
def main(hours: float, rate: float, idle: int, reconnect_every: float, out: Path | None) -> None:
    """Run a steady load for hours, and check for drift, growth and slowdown.

    The command starts its own redis-server, producer, prefork worker, threads worker, idle
    workers and visitor, on loopback. The exit status is 1 if a worker's prefetch differs from
    its limit, memory or keys do not level off, the last tenth is slower than the first, or a
    task is lost or runs twice.
    """
    with ExitStack() as stack:
        if out is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reliq-soak-")))
        else:
            directory = new_directory(out.resolve())  # workers have another working directory
        settings = Settings(
            directory=directory,
            duration_s=3600 * hours,
            rate=rate,
            idle=idle,
            reconnect_every_s=reconnect_every,
            sample_every_s=max(1.0, 3600 * hours / SAMPLES),
        )
        seen = carry_out(settings)
        found = verdict.findings(seen, settings.bounds)
        command = shlex.join(["python", "-m", "tests.soak", *sys.argv[1:]])
        card = report.summary(seen, settings, found, command, surroundings())
        _print(card)
        if out is not None:
            report.write_json(card, out / "soak.json")
            if find_spec("matplotlib"):
                from tests.soak.picture import draw

                draw(seen, out / "soak.svg")
            else:
                click.echo(
                    "no picture: matplotlib is missing (pip install -e '.[chaos]')", err=True
                )
    if found:
        sys.exit(1)


def _print(card: dict[str, object]) -> None:
    click.echo(f"{'passed' if card['passed'] else 'FAILED'}: {card['tasks']} tasks")
    figures = card["figures"]
    assert isinstance(figures, dict)
    for name, (before, after) in figures.items():
        click.echo(f"{name}: {before:,} to {after:,}")
    findings = card["findings"]
    assert isinstance(findings, list)
    for finding in findings:
        click.echo(f"- {finding}")
