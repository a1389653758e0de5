"""``reliq dead``: find, look at, replay, remove, write and read dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from reliq.admin.names import REASONS, Filters
from reliq.printable import plain

from . import console as out
from .options import (
    Number,
    collected,
    dry_run_option,
    duration,
    limit_option,
    on_brokers,
    queue_argument,
    yes_option,
)
from .queues import message_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reliq.admin import Inspector, Message, Partial
    from reliq.admin.names import Part

    from .target import Target


@dataclass(frozen=True)
class Chosen:
    """The dead letters that a command is to change, and how."""

    filters: Filters
    tags: Sequence[str] | None
    limit: int | None
    rate: float | None
    dry_run: bool

    @property
    def part(self) -> Part:
        """What the Inspector's methods take."""
        return {"limit": self.limit, "rate": self.rate, **self.filters}


_filtered = collected(
    "filters",
    Filters,
    click.option("--task", help="Those of this Celery task."),
    click.option("--reason", type=click.Choice(REASONS), help="Those that died of it."),
    click.option(
        "--older", "older_than_s", type=duration, help="Those that died longer ago: 90, 15m, 2d."
    ),
    click.option("--newer", "newer_than_s", type=duration, help="Those that died since then."),
    click.option("--match", help="A regular expression in task, id, error or arguments."),
)
_chosen = collected(
    "chosen",
    Chosen,
    _filtered,
    click.option(
        "--tag",
        "tags",
        multiple=True,
        callback=lambda _context, _option, tags: tags or None,
        help="This one; several: again.",
    ),
    click.option("--limit", type=click.IntRange(1), help="No more than so many."),
    click.option("--rate", type=Number(0, min_open=True), help="No more than so many a second."),
    dry_run_option,
)


@click.group()
def dead() -> None:
    """Dead letters: find, look at, replay, remove, write to a file, read from one.

    A message is dead when it was rejected, could not be read, failed too often, expired
    or was pushed out of a full queue (docs/dead-letters.md).

    \b
    Examples:
      reliq dead list orders --task shop.ship --newer 1h
      reliq dead replay orders --reason delivery_limit --rate 50
    """


@dead.command("list")
@queue_argument
@_filtered
@limit_option(100)
@on_brokers
def list_command(target: Target, queue: str, filters: Filters, limit: int) -> None:
    """Show dead letters of QUEUE, oldest first.

    \b
    Examples:
      reliq dead list orders
      reliq dead list orders --reason delivery_limit --older 1d
      reliq dead list orders --match 'Timeout|refused' --json
    """

    def find(inspector: Inspector) -> Partial[Message]:
        found = inspector.dead_letters(queue, limit, **filters)
        return found.each(lambda dead_letter: inspector.view(queue, dead_letter))

    target.answer(
        find,
        lambda rows: (message_table(rows, "dead"), f"{len(rows)} dead letter(s) of {queue}"),
    )


@dead.command()
@queue_argument
@click.argument("tag")
@on_brokers
def show(target: Target, queue: str, tag: str) -> None:
    """Show one dead letter of QUEUE: all that is known, its headers and properties.

    \b
    Example:
      reliq dead show orders 0501926f3b2c5d8a1b2c3d4e5f000001
    """

    def look(inspector: Inspector) -> dict[str, Any]:
        dead_letter = inspector.dead_letter(queue, tag)
        message = dead_letter.message
        return {
            **out.of_broker(inspector.broker, inspector.view(queue, dead_letter)),
            "headers": {} if message is None else message.headers,
            "properties": {} if message is None else message.properties,
            "exchange": None if message is None else message.exchange,
            "routing_key": None if message is None else message.routing_key,
        }

    found = target.gather(look)
    out.answer(found.require_some()[0], target.as_json, lambda row: [out.fields(row)])
    found.complain()


def _change(
    target: Target,
    queue: str,
    chosen: Chosen,
    steps: Callable[[Inspector, int], Iterator[int]],
    done: str,
    *,
    file: str | None = None,
) -> None:
    """Do *steps* on each broker that has the queue, and say how many dead letters it was.

    *steps* is given how many there are now: in the queue, or in *file*.
    """

    def work(inspector: Inspector) -> dict[str, Any]:
        wanted: Any = {"tags": chosen.tags, "limit": chosen.limit, **chosen.filters}
        if file is None:
            number = inspector.count_dead_letters(queue, **wanted)
        else:
            number = inspector.count_exported(queue, file, **wanted)
        if not chosen.dry_run:
            label = f"{queue} {inspector.broker}"
            number = out.progressing(label, number, steps(inspector, number))
        return {"count": number, "dry_run": chosen.dry_run}

    target.change("queue", queue, work, out.counted(done))


@dead.command()
@queue_argument
@_chosen
@click.option("--to", metavar="QUEUE", help="Into another queue, which must exist.")
@on_brokers
def replay(target: Target, queue: str, chosen: Chosen, to: str | None) -> None:
    """Put dead letters of QUEUE back to be delivered again, with a count of none.

    Ctrl-C or a kill at any point loses and doubles nothing: run it again to go on.

    \b
    Examples:
      reliq dead replay orders --dry-run
      reliq dead replay orders --task shop.ship --newer 1h --rate 50
      reliq dead replay orders --to orders.retry --limit 10
    """

    def steps(inspector: Inspector, _: int) -> Iterator[int]:
        return inspector.replaying(queue, chosen.tags, to=to, **chosen.part)

    _change(target, queue, chosen, steps, "replayed")


@dead.command()
@queue_argument
@_chosen
@yes_option
@on_brokers
def purge(target: Target, queue: str, chosen: Chosen, yes: bool) -> None:
    """Remove dead letters of QUEUE for good; asks first.

    \b
    Examples:
      reliq dead purge orders --older 30d --dry-run
      reliq dead purge orders --reason expired --yes
    """

    def steps(inspector: Inspector, number: int) -> Iterator[int]:
        if number:
            where = f"{plain(queue)} at {inspector.broker}"
            question = f"Remove {number} dead letters of {where} for good?"
            out.confirmed(question, inspector.broker, yes)
        # The oldest, as many as were asked about: what died since was not.
        part: Part = {**chosen.part, "limit": number}
        return inspector.purging_dead_letters(queue, chosen.tags, **part)

    _change(target, queue, chosen, steps, "removed")


_file_argument = click.argument("file", type=click.Path(dir_okay=False))


@dead.command("export")
@queue_argument
@_file_argument
@_chosen
@click.option("--resume", is_flag=True, help="Go on with a file that was begun before.")
@on_brokers
def export_command(target: Target, queue: str, file: str, chosen: Chosen, resume: bool) -> None:
    """Write dead letters of QUEUE to FILE, one JSON object a line; they stay in the queue.

    After Ctrl-C --resume goes on: what is in the file is not written twice.

    \b
    Examples:
      reliq dead export orders orders.jsonl
      reliq dead export orders orders.jsonl --resume
    """
    _one_broker(target)

    def steps(inspector: Inspector, _: int) -> Iterator[int]:
        return inspector.export_dead_letters(queue, file, chosen.tags, resume=resume, **chosen.part)

    _change(target, queue, chosen, steps, "written")


@dead.command("import")
@queue_argument
@_file_argument
@_chosen
@click.option("--again", is_flag=True, help="Store also what was read from this file before.")
@on_brokers
def import_command(target: Target, queue: str, file: str, chosen: Chosen, again: bool) -> None:
    """Read dead letters from FILE into QUEUE, where they are dead; each is stored once.

    Run it again after Ctrl-C: what was stored before is not stored twice, also where it
    was replayed or removed since.

    \b
    Examples:
      reliq dead import orders orders.jsonl
      reliq dead import orders orders.jsonl --match 'Timeout'
    """
    _one_broker(target)

    def steps(inspector: Inspector, _: int) -> Iterator[int]:
        return inspector.import_dead_letters(queue, file, chosen.tags, again=again, **chosen.part)

    _change(target, queue, chosen, steps, "stored", file=file)


def _one_broker(target: Target) -> None:
    if len(target.urls) > 1:
        raise click.UsageError("a file belongs to one broker: give one --url")
