"""The command line: duration, faults, seed, and the folder of the scorecard."""

from __future__ import annotations

import platform
import random
import shlex
import sys
import tempfile
from contextlib import ExitStack
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.machine import commit
from reliq import __version__
from tests.chaos import scorecard
from tests.chaos.faults import FAULTS
from tests.chaos.faults import kinds as fault_kinds
from tests.chaos.run import Watcher, carry_out, new_directory
from tests.chaos.settings import KOMBU, POOLS, SHORT, Settings
from tests.support.servers import server_version

if TYPE_CHECKING:
    from tests.chaos.ledger import Tail
    from tests.chaos.model import Fault
    from tests.chaos.settings import Brokers

_WIDTH_OF_A_FILE = 140


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", default=2.0, show_default=True, help="Duration of the faults.")
@click.option(
    "--faults",
    default="",
    metavar="KIND,...",
    help=f"Apply only these kinds. Kinds: {', '.join(FAULTS)}. Some kinds need --brokers.",
)
@click.option("--every", default=4.0, show_default=True, help="Average seconds between faults.")
@click.option(
    "--seed", type=int, help="Repeat the schedule of a run. Default: random; the run prints it."
)
@click.option("--workers", default=4, show_default=True, help="Number of Celery workers.")
@click.option(
    "--pools",
    default=",".join(POOLS),
    show_default=True,
    metavar="POOL,...",
    help="Pools of the workers.",
)
@click.option("--producers", default=2, show_default=True, help="Number of publishing processes.")
@click.option(
    "--rate",
    default=300.0,
    show_default=True,
    help="Publishes per second, of all producers; 0: no limit.",
)
@click.option(
    "--batches", default=0.2, show_default=True, help="Share of publishes that belong to batches."
)
@click.option(
    "--poison-every", default=20.0, show_default=True, help="Seconds between poison tasks; 0: none."
)
@click.option(
    "--brokers",
    type=click.Choice(["one", "two", "sentinels", "cluster", "embedded", "logins"]),
    default="one",
    show_default=True,
    help="One server and its replica behind a proxy; the same and a second URL; a Sentinel group; "
    "a cluster; an embedded broker; a server whose logins end.",
)
@click.option(
    "--starve-every",
    default=0.0,
    show_default=True,
    help="Seconds between `starve` faults, in addition to the others; 0: none.",
)
@click.option(
    "--scheme",
    default="reliq",
    show_default=True,
    help="URL scheme of the tested transport; 'redis' tests Kombu's.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write scorecard.md, scorecard.json, timeline.svg, the ledger and logs to this folder.",
)
def main(
    minutes: float,
    faults: str,
    every: float,
    seed: int | None,
    workers: int,
    pools: str,
    producers: int,
    rate: float,
    batches: float,
    poison_every: float,
    brokers: Brokers,
    starve_every: float,
    scheme: str,
    out: Path | None,
) -> None:
    """Kill workers and brokers, cut the network between them, and count lost tasks.

    The command starts its own redis-servers, proxy, producers and Celery workers, on
    loopback. The exit status is 1 if a confirmed task is lost, runs twice without a fault
    that explains it, or is left behind.
    """
    known = fault_kinds(brokers, every=True)
    kinds = _chosen(faults, known, "--faults") if faults else fault_kinds(brokers)
    chosen_pools = _chosen(pools, POOLS, "--pools")
    seed = random.randrange(2**32) if seed is None else seed
    screen = Console() if sys.stdout.isatty() else Console(width=_WIDTH_OF_A_FILE)
    screen.print(f"seed {seed}", highlight=False)
    where = surroundings()  # before any of it can change
    with ExitStack() as stack:
        if out is None:
            directory = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="reliq-chaos-"))
            )
        else:
            directory = new_directory(out.resolve())  # workers run elsewhere
        settings = Settings(
            directory=directory,
            seed=seed,
            duration_s=60 * minutes,
            kinds=kinds,
            fault_every_s=every,
            starve_every_s=starve_every,
            scheme=scheme,
            workers=workers,
            pools=chosen_pools,
            producers=producers,
            rate=rate,
            batches=batches,
            poison_every_s=poison_every,
            brokers=brokers,
            options=SHORT if scheme.startswith("reliq") else KOMBU,
        )
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True)) as progress:
            outcome = carry_out(settings, _Screen(progress, settings.duration_s))
        command = shlex.join(["python", "-m", "tests.chaos", *sys.argv[1:]])
        card = scorecard.summary(outcome, command, where)
        screen.print(*scorecard.tables(card))
        for finding in [*(f"lost: {one}" for one in outcome.verdict.lost), *card["findings"]]:
            screen.print(f"- {finding}", style="red", markup=False, highlight=False)
        if out is not None:
            picture = "timeline.svg" if find_spec("matplotlib") else ""
            scorecard.write_json(card, out / "scorecard.json")
            scorecard.write_markdown(card, out / "scorecard.md")
            if picture:
                from tests.chaos.picture import draw

                draw(outcome, out / picture)
            else:
                click.echo(
                    "no picture: matplotlib is missing (pip install -e '.[chaos]')", err=True
                )
    if not outcome.verdict.passed:
        sys.exit(1)


def _chosen(names: str, known: object, option: str) -> list[str]:
    every = list(known)  # type: ignore[call-overload]
    chosen = [name.strip() for name in names.split(",") if name.strip()] or every
    for name in chosen:
        if name not in every:
            raise click.BadParameter(
                f"expected one of {', '.join(every)}, got: {name!r}", param_hint=option
            )
    return chosen


def surroundings() -> dict[str, str]:
    """Return the versions to report."""
    found = {"python": platform.python_version(), "system": f"{platform.system()}"}
    found["reliq"] = __version__
    found |= {package: version(package) for package in ("kombu", "celery", "redis")}
    found["redis-server"] = ".".join(map(str, server_version()))
    return found | ({"commit": name} if (name := commit()) else {})


class _Screen(Watcher):
    """Shows the progress of a run."""

    def __init__(self, progress: Progress, duration_s: float) -> None:
        self._progress = progress
        self._bar = progress.add_task("", total=duration_s)

    def struck(self, fault: Fault, at_s: float) -> None:
        """Print the fault."""
        whom = f" {fault.worker}" if fault.worker else ""
        note = f" ({fault.note})" if fault.note else ""
        what = fault.kind if fault.applied else f"{fault.kind}: nothing to hit"
        self._progress.console.print(f"{at_s:7.1f} s  {what}{whom}{note}", highlight=False)

    def progress(self, at_s: float, tail: Tail) -> None:
        """Move the bar."""
        self._progress.update(
            self._bar,
            completed=at_s,
            description=f"{tail.confirmed:,} confirmed, {len(tail.outstanding):,} under way",
        )

    def phase(self, text: str) -> None:
        """Print the phase."""
        self._progress.console.print(text, style="bold")
