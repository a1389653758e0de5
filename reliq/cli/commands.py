"""The ``reliq`` command: thin commands over ``reliq.admin``, and the demo."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from reliq._version import __version__
from reliq.admin import AuditResult, Inspector
from reliq.errors import ReliqError

from .console import Refused
from .demo import run_demo

if TYPE_CHECKING:
    from collections.abc import Callable

_MASTER_NAME = "reliq.master_name"
F = TypeVar("F", bound="Callable[..., Any]")

LEAVES = ("acked", "expired", "purged", "dropped", "moved")
PLACES = ("ready", "delayed", "unacked", "dead")

_broker_option = click.option(
    "--url",
    envvar="RELIQ_URL",
    required=True,
    show_envvar=True,
    help="The broker, for example reliq://localhost:6379/0.",
)


def _keep_master_name(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    context.meta[_MASTER_NAME] = value


_master_option = click.option(
    "--master-name",
    envvar="RELIQ_MASTER_NAME",
    show_envvar=True,
    expose_value=False,
    callback=_keep_master_name,
    help="With reliq-sentinel:// URLs: the name under which the Sentinels know the master.",
)


def url_option(command: F) -> F:
    """Add what names the broker: the URL and, for Sentinel, the master."""
    return _broker_option(_master_option(command))


prefix_option = click.option(
    "--prefix",
    envvar="RELIQ_KEYPREFIX",
    default="",
    show_envvar=True,
    help="The global_keyprefix of the transport options, if one is used.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="reliq")
def main() -> None:
    """Look at the queues that reliq keeps, or see it work: reliq demo."""


@main.command()
@click.option("--url", help="Use this broker instead of a private redis-server.")
@click.option(
    "--tasks", type=click.IntRange(40, 100_000), default=300, show_default=True, help="How many."
)
@click.option("--compare", is_flag=True, help="Run the same over Kombu's own redis:// as well.")
@json_option
def demo(url: str | None, tasks: int, compare: bool, as_json: bool) -> None:
    """Kill a Celery worker half way and count what is lost or done twice.

    Exits with 1 if reliq lost a task, ran one twice, or its ledger does not balance.
    """
    if importlib.util.find_spec("celery") is None:
        raise Refused("the demo runs Celery: pip install 'reliq[demo]'")
    sys.exit(run_demo(url, tasks, compare, as_json))


def _inspector(url: str, prefix: str) -> Inspector:
    master_name = click.get_current_context().meta.get(_MASTER_NAME)
    given = {"global_keyprefix": prefix, "master_name": master_name}
    return Inspector(url, {name: value for name, value in given.items() if value})


@main.command()
@url_option
@prefix_option
@json_option
def audit(url: str, prefix: str, as_json: bool) -> None:
    """Check each queue's ledger: every message ever published is accounted for.

    Exits with 1 if a queue does not balance, with 2 if the broker cannot be asked.
    """
    try:
        with _inspector(url, prefix) as inspector:
            results = inspector.audit()
    except ReliqError as error:
        raise Refused(str(error)) from error
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=2))
    else:
        _print_audit(results)
    sys.exit(0 if all(result.balanced for result in results) else 1)


def _print_audit(results: list[AuditResult]) -> None:
    table = Table()
    for name in ("queue", "published", *LEAVES, *PLACES, "difference"):
        table.add_column(name, justify="left" if name == "queue" else "right")
    for result in results:
        numbers = {**result.ledger, **result.counts}
        cells = [str(numbers.get(name, 0)) for name in ("published", *LEAVES, *PLACES)]
        table.add_row(result.queue, *cells, str(result.difference))
    console = Console(soft_wrap=True)
    console.print(table)
    wrong = [result.queue for result in results if not result.balanced]
    if wrong:
        console.print(f"NOT balanced: {', '.join(wrong)}", markup=False)
    else:
        console.print(f"{len(results)} queue(s), all balanced", markup=False)


@main.command()
@click.argument("queue", required=False)
@click.option("--all", "everything", is_flag=True, help="Every queue that is to last.")
@click.option("--from", "source", required=True, metavar="URL", help="The broker to empty.")
@click.option("--to", "target", required=True, metavar="URL", help="The broker to fill.")
@prefix_option
@json_option
def move(
    queue: str | None, everything: bool, source: str, target: str, prefix: str, as_json: bool
) -> None:
    r"""Carry ready, delayed and dead messages of QUEUE, or of all, to another broker.

    Each message is stored there once, however often the command is cut off: run it
    again to go on. What consumers hold stays with them; run it again when it is back.

    \b
    Examples:
      reliq move orders --from reliq://b:6379/0 --to reliq://a:6379/0
      reliq move --all --from reliq://b:6379/0 --to reliq://a:6379/0
    """
    if (queue is None) != everything:
        raise click.UsageError("give a QUEUE, or --all")
    moved: dict[str, int] = {}
    try:
        with _inspector(source, prefix) as from_, _inspector(target, prefix) as to:
            for name in [queue] if queue is not None else from_.lasting_queues():
                moved[name] = _move_one(from_, to, name)
    except ReliqError as error:
        raise Refused(str(error)) from error
    if as_json:
        click.echo(json.dumps(moved, indent=2))
        return
    for name, count in moved.items():
        click.echo(f"{name}: {count} moved")


def _move_one(source: Inspector, target: Inspector, queue: str) -> int:
    status = source.status(queue)
    count = 0
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(queue, total=status.ready + status.delayed + status.dead)
        for step in source.carry(queue, target):
            count += step
            progress.advance(task, step)
    return count


@main.command()
@url_option
@prefix_option
@json_option
def status(url: str, prefix: str, as_json: bool) -> None:
    """Show how many messages each queue holds, and in which state."""
    try:
        with _inspector(url, prefix) as inspector:
            found = [inspector.status(queue) for queue in inspector.queues()]
    except ReliqError as error:
        raise Refused(str(error)) from error
    if as_json:
        click.echo(json.dumps([asdict(queue) for queue in found], indent=2))
        return
    table = Table("queue", *PLACES)
    for queue in found:
        table.add_row(queue.name, *(str(getattr(queue, place)) for place in PLACES))
    Console(soft_wrap=True).print(table)
