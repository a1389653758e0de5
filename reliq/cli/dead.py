"""``reliq dead``: list, show, replay, purge, export and import dead letters."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from reliq.admin import Partial
from reliq.admin.names import REASONS, Filters
from reliq.errors import NotFound
from reliq.printable import plain

from . import console as out
from .completion import queue_names
from .endings import Group
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

    from reliq.admin import Inspector, Message
    from reliq.admin.names import Part

    from .target import Target


@dataclass(frozen=True)
class Chosen:
    """The dead letters selected for a change, and the mode of the change."""

    filters: Filters
    tags: Sequence[str] | None
    limit: int | None
    rate: float | None
    dry_run: bool

    @property
    def part(self) -> Part:
        """The arguments for the Inspector's methods."""
        return {"limit": self.limit, "rate": self.rate, **self.filters}


_filtered = collected(
    "filters",
    Filters,
    click.option("--task", help="Only this Celery task."),
    click.option("--reason", type=click.Choice(REASONS), help="Only this reason."),
    click.option("--older", "older_than_s", type=duration, help="Only older than this: 90, 1h30m."),
    click.option("--newer", "newer_than_s", type=duration, help="Only newer than this."),
    click.option("--match", help="A regular expression to find in task, id, error or arguments."),
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
        help="Only this delivery tag (repeatable).",
    ),
    click.option("--limit", type=click.IntRange(1), help="At most this many."),
    click.option("--rate", type=Number(0, min_open=True), help="At most this many a second."),
    dry_run_option,
)


@click.group(cls=Group)
def dead() -> None:
    """List, show, replay, purge, export and import dead letters.

    A message becomes a dead letter when it is rejected or unreadable, expires, fails too often,
    or is removed from a full queue (docs/dead-letters.md).

    \b
    Examples:
      reliq dead list orders --task shop.ship --newer 1h
      reliq dead replay orders --reason delivery_limit --rate 50
    """


@dead.command("list")
@click.argument("queue", required=False, shell_complete=queue_names)
@_filtered
@limit_option(100)
@on_brokers
def list_command(target: Target, queue: str | None, filters: Filters, limit: int) -> None:
    """Show dead letters of QUEUE, or of all queues, oldest first.

    \b
    Examples:
      reliq dead list --newer 1h
      reliq dead list orders
      reliq dead list orders --reason delivery_limit --older 1d
      reliq dead list orders --match 'Timeout|refused' --json
    """

    def of(inspector: Inspector, name: str) -> Partial[Message]:
        letters = inspector.dead_letters(name, limit, **filters)
        return letters.each(lambda dead_letter: inspector.view(name, dead_letter))

    def find(inspector: Inspector) -> Partial[Message]:
        if queue is not None:
            return of(inspector, queue)
        report = inspector.report()
        messages: Partial[Message] = Partial(unreachable=report.untold)
        for item in report.queues:
            with suppress(NotFound):  # deleted meanwhile
                messages += of(inspector, item.queue) if item.dead else ()
        messages.sort(key=lambda message: message.died_ms or 0)
        del messages[limit:]
        return messages

    where = "all queues" if queue is None else queue
    target.answer(
        find,
        lambda rows: (message_table(rows, "dead"), f"{len(rows)} dead letter(s) of {where}"),
    )


@dead.command()
@queue_argument
@click.argument("tag")
@on_brokers
def show(target: Target, queue: str, tag: str) -> None:
    """Show one dead letter of QUEUE with its headers and properties.

    \b
    Example:
      reliq dead show orders 0501926f3b2c5d8a1b2c3d4e5f000001
    """

    def read(inspector: Inspector) -> dict[str, Any]:
        dead_letter = inspector.dead_letter(queue, tag)
        message = dead_letter.message
        return {
            **out.of_broker(inspector.broker, inspector.view(queue, dead_letter)),
            "headers": {} if message is None else message.headers,
            "properties": {} if message is None else message.properties,
            "exchange": None if message is None else message.exchange,
            "routing_key": None if message is None else message.routing_key,
        }

    gathered = target.gather(read)
    out.answer(gathered.require_some()[0], target.as_json, lambda row: [out.fields(row)])
    gathered.complain()


def _change(
    target: Target,
    queue: str,
    chosen: Chosen,
    steps: Callable[[Inspector, int], Iterator[int]],
    done: str,
    *,
    file: str | None = None,
) -> None:
    """Run *steps* on each broker that has the queue, and print the number of dead letters.

    *steps* gets the number of selected dead letters in the queue, or in *file*.
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
@click.option("--to", metavar="QUEUE", help="Replay to this existing queue.")
@on_brokers
def replay(target: Target, queue: str, chosen: Chosen, to: str | None) -> None:
    """Make dead letters of QUEUE ready again, with a delivery count of zero.

    An interruption neither loses nor duplicates a message. To continue, run the command again.

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
    """Remove dead letters of QUEUE permanently, after confirmation.

    \b
    Examples:
      reliq dead purge orders --older 30d --dry-run
      reliq dead purge orders --reason expired --yes
    """

    def steps(inspector: Inspector, number: int) -> Iterator[int]:
        if number:
            where = f"{plain(queue)} at {inspector.broker}"
            question = f"Remove {number} dead letters of {where} permanently?"
            out.confirmed(question, inspector.broker, yes)
        # Only the confirmed number, oldest first: later dead letters were not confirmed.
        part: Part = {**chosen.part, "limit": number}
        return inspector.purging_dead_letters(queue, chosen.tags, **part)

    _change(target, queue, chosen, steps, "removed")


_file_argument = click.argument("file", type=click.Path(dir_okay=False))


@dead.command("export")
@queue_argument
@_file_argument
@_chosen
@click.option("--resume", is_flag=True, help="Continue an interrupted export to FILE.")
@on_brokers
def export_command(target: Target, queue: str, file: str, chosen: Chosen, resume: bool) -> None:
    """Write dead letters of QUEUE to FILE, one JSON object per line; they stay in the queue.

    To continue after Ctrl-C, use --resume. No dead letter is written twice.

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
@click.option("--again", is_flag=True, help="Also store dead letters imported from FILE before.")
@on_brokers
def import_command(target: Target, queue: str, file: str, chosen: Chosen, again: bool) -> None:
    """Read dead letters from FILE into the dead letters of QUEUE; each is stored once.

    To continue after Ctrl-C, run the command again. A dead letter is not stored twice, even if
    it has been replayed or removed since.

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
