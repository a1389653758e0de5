"""The ``reliq`` command: the demo, the move, and the group that all commands belong to."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

import click

from reliq._version import __version__
from reliq.admin import Inspector

from . import console as out
from .acl import acl
from .batches import batch
from .bench.command import bench
from .completion import completion
from .dead import dead
from .demo.command import run_demo
from .diagnostics import audit, consumers, doctor
from .embedded import embedded
from .endings import Group, Refused
from .exporter import exporter
from .messages import peek
from .migrate import migrate
from .options import address_map_option, json_option, master_option, prefix_option
from .queues import queue as queue_commands
from .schema import schema
from .spool import spool
from .status import status
from .target import target_of
from .top import top
from .web import web

if TYPE_CHECKING:
    from collections.abc import Mapping


class Main(Group):
    """The commands, which take what names a broker before them, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put each --url that comes before the command behind all others."""
        urls: list[str] = []
        while args and args[0].partition("=")[0] == "--url":
            count = 1 if "=" in args[0] else 2
            urls, args = urls + args[:count], args[count:]
        return super().parse_args(ctx, [*args, *urls] if args else urls)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="reliq")
def main() -> None:
    """Look at the queues that reliq keeps, and put them right; or see it work: reliq demo.

    Every command takes the broker from RELIQ_URL or --url, before the command or after it,
    and prints JSON with --json.
    Exit codes: 0 done; 1 done, and a fault was found (audit, doctor, demo); 2 not done:
    wrong usage, refused, or a broker did not answer; 130 interrupted.

    \b
    Examples:
      export RELIQ_URL=reliq://localhost:6379/0
      reliq status
      reliq peek orders --state unacked
      reliq dead list orders --newer 1h
    """


@main.command()
@click.option("--url", help="Use this broker instead of a private one.")
@click.option(
    "--tasks", type=click.IntRange(40, 100_000), default=300, show_default=True, help="How many."
)
@click.option(
    "--compare",
    is_flag=True,
    help="Run the same over Kombu's own redis:// as well.",
)
@json_option
def demo(url: str | None, tasks: int, compare: bool, as_json: bool) -> None:
    """Kill a Celery worker half way and count what is lost or done twice.

    Exits with 1 if reliq lost a task, ran one twice, or its ledger does not balance.

    \b
    Examples:
      reliq demo
      reliq demo --compare
    """
    if importlib.util.find_spec("celery") is None:
        raise Refused("the demo runs Celery: pip install 'kombu-reliq[demo]'")
    sys.exit(run_demo(url, tasks, compare, as_json))


@main.command()
@click.argument("queue", required=False)
@click.option("--all", "everything", is_flag=True, help="Every durable queue.")
@click.option("--from", "source", required=True, metavar="URL", help="The broker to empty.")
@click.option("--to", "target", required=True, metavar="URL", help="The broker to fill.")
@master_option
@address_map_option
@prefix_option
@json_option
def move(
    queue: str | None,
    everything: bool,
    source: str,
    target: str,
    prefix: str,
    master_name: str | None,
    address_map: Mapping[str, str],
    as_json: bool,
) -> None:
    """Move ready, delayed and dead messages of QUEUE, or of all, to another broker.

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
    options = target_of((source,), prefix, master_name, address_map).options
    with (
        Inspector(source, options) as from_,
        Inspector(target, options, create=True) as to,
    ):
        for name in [queue] if queue is not None else from_.durable_queues():
            moved[name] = _move_one(from_, to, name)
    lines = (f"{name}: {count} moved" for name, count in moved.items())
    out.answer(moved, as_json, lambda _: lines)


def _move_one(source: Inspector, target: Inspector, queue: str) -> int:
    status = source.status(queue)
    total = status.ready + status.delayed + status.dead
    return out.progressing(queue, total, source.move(queue, target))


for _command in (
    status,
    top,
    consumers,
    peek,
    batch,
    dead,
    queue_commands,
    audit,
    doctor,
    migrate,
    spool,
    exporter,
    web,
    acl,
    bench,
    embedded,
    schema,
    completion,
):
    main.add_command(_command)
