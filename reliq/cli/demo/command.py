"""``reliq demo``: kill a worker during its work, and count lost and repeated tasks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import secrets
import signal
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from kombu import connection as kombu_connection
from rich.console import Console

from reliq.embedded.folder import SCHEME as EMBEDDED
from reliq.embedded.start import broker
from reliq.errors import ReliqError
from reliq.options import parse

from ..endings import INTERRUPTED, Refused
from ..options import json_option
from .record import LONGEST_MS, SHORTEST_MS
from .run import DemoRun, Outcome, Screen, Side, show
from .worker import PROCESSES, ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

Connection: Any = kombu_connection.Connection  # Kombu is untyped
# At Kombu's defaults, the tasks of a killed worker return after an hour, with a check every
# 100 s. Versions before 5.7 know only the first of these options. reliq is compared with the same.
COMPARED = {"visibility_timeout": 5, "restore_interval": 1}
KOMBU_OPTIONS = {
    "visibility_timeout": 5,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
KOMBU_PATIENCE_S = 120.0
KOMBU_SCHEMES = {"reliq": "redis", "reliqs": "rediss", "reliq-unix": "redis+socket"}


def reliq_side(url: str, queue: str, compare: bool) -> Side:
    """Return the run over *url*, with default options if it is not compared."""
    given = COMPARED if compare else {}
    options = parse(given)
    patience_s = options.visibility_timeout + 3 * options.restore_interval
    return Side(url.partition("://")[0], url, given, queue, patience_s, compare)


def kombu_side(url: str, queue: str, compare: bool) -> Side:
    """Return the run over Kombu's own transport and the server of *url*."""
    scheme, _, rest = url.partition("://")
    name = KOMBU_SCHEMES.get(scheme, scheme)
    if scheme == EMBEDDED:
        name, rest = "redis+socket", f"{rest}/broker.sock"
    options = {**KOMBU_OPTIONS, "global_keyprefix": f"{queue}:"}
    return Side(f"Kombu {name}", f"{name}://{rest}", options, queue, KOMBU_PATIENCE_S, compare)


def clean(side: Side) -> None:
    """Delete the queue of the run from the broker."""
    with Connection(side.url, transport_options=dict(side.transport_options)) as connection:
        channel = connection.default_channel
        if side.has_ledger:
            channel.queue_delete(side.queue)
        else:
            # Kombu deletes only queues that the same process bound.
            channel.client.delete(side.queue, "unacked", "unacked_index", "unacked_mutex")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C in the block, so that the cleanup runs."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _introduce(console: Console, tasks: int, broker: str, compare: bool) -> None:
    options = parse(COMPARED if compare else {})
    version = importlib.metadata.version("celery")
    names = ("visibility_timeout", "orphan_grace", "restore_interval")
    defaults = ", ".join(f"{name} {getattr(options, name):g} s" for name in names)
    lines = [
        f"broker   {broker}",
        f"tasks    {tasks}, {SHORTEST_MS} to {LONGEST_MS} ms each",
        f"worker   Celery {version}, prefork, {PROCESSES} processes, task_acks_late",
        f"options  reliq: {defaults}",
    ]
    if compare:
        settings = ", ".join(f"{name} {value}" for name, value in KOMBU_OPTIONS.items())
        lines.append(
            f"         Kombu's transport: {settings}. With its defaults, a killed worker's tasks "
            "come back after an hour."
        )
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _run(url: str | None, tasks: int, compare: bool, as_json: bool) -> int:
    # With --json, only the outcome goes to standard output.
    console = Console(stderr=as_json, soft_wrap=True)
    try:
        with _interruptible(), tempfile.TemporaryDirectory(prefix="reliq-demo-") as name:
            outcomes = _outcomes(url, tasks, compare, Path(name), console)
    except KeyboardInterrupt:
        console.print("interrupted; the processes and data of the demo are removed")
        return INTERRUPTED
    except (ReliqError, ProcessFailed) as error:
        raise Refused(str(error)) from error
    if as_json:
        click.echo(json.dumps({"runs": [outcome.as_json() for outcome in outcomes]}, indent=2))
    return 0 if outcomes[0].ok else 1


def _outcomes(
    url: str | None, tasks: int, compare: bool, folder: Path, console: Console
) -> list[Outcome]:
    outcomes = []
    with broker() if url is None else nullcontext(url) as own:
        sides = _sides(own, f"reliq-demo-{secrets.token_hex(4)}", compare)
        private = "an embedded Valkey or Redis in a temporary folder"
        _introduce(console, tasks, private if url is None else Connection(url).as_uri(), compare)
        for number, side in enumerate(sides):
            place = folder / str(number)
            place.mkdir()
            try:
                with Screen(console, side.name, tasks) as screen:
                    outcomes.append(DemoRun(side, tasks, place, screen).run())
            finally:
                if url is not None:
                    clean(side)
    show(outcomes, console)
    return outcomes


def _sides(url: str, queue: str, compare: bool) -> list[Side]:
    scheme = url.partition("://")[0]
    own = scheme in KOMBU_SCHEMES or scheme == EMBEDDED
    if not own and scheme not in KOMBU_SCHEMES.values():
        known = ", ".join(f"{name}://" for name in (*KOMBU_SCHEMES, EMBEDDED))
        raise click.BadParameter(f"expected a URL with {known}", param_hint="--url")
    compare = compare and own
    sides = [(reliq_side if own else kombu_side)(url, queue, compare)]
    if compare:
        sides.append(kombu_side(url, f"{queue}-kombu", compare))
    return sides


@click.command()
@click.option("--url", help="Use this broker instead of a private one.")
@click.option(
    "--tasks", type=click.IntRange(40, 100_000), default=300, show_default=True, help="Task count."
)
@click.option(
    "--compare",
    is_flag=True,
    help="Also run the demo over Kombu's redis:// transport, and a long task over both.",
)
@json_option
def demo(url: str | None, tasks: int, compare: bool, as_json: bool) -> None:
    """Kill a Celery worker during its work, and count lost and repeated tasks.

    Exits with 1 if reliq lost a task or finished one twice, or if its ledger does not balance.

    \b
    Examples:
      reliq demo
      reliq demo --compare
    """
    over_kombu = compare or not (url or "reliq").startswith("reliq")
    for package in ("celery", "redis", "packaging")[: 3 if over_kombu else 1]:
        if importlib.util.find_spec(package) is None:
            raise Refused.for_extra(f"the demo needs {package}", "demo")
    sys.exit(_run(url, tasks, compare, as_json))
