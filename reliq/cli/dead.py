"""``reliq dead``: find, look at, replay, remove, write and read dead letters."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.pretty import Pretty

from reliq.admin.dead_letter_choice import REASONS, Filters
from reliq.printable import plain

from . import console as out
from .messages import message_table
from .target import json_option, on_brokers, queue_argument
from .values import Duration, Number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reliq.admin import Inspector

    from .target import Target

F = TypeVar("F", bound="Callable[..., Any]")

_FILTERS = (
    click.option("--task", help="Those of this Celery task."),
    click.option("--reason", type=click.Choice(REASONS), help="Those that died of it."),
    click.option("--older", type=Duration(), help="Those that died longer ago: 90, 15m, 2d."),
    click.option("--newer", type=Duration(), help="Those that died since then."),
    click.option("--match", help="A regular expression in task, id, error or arguments."),
)
_TAGS = click.option("--tag", "tags", multiple=True, help="This one; several: again.")
_RATE = click.option("--rate", type=Number(0, min_open=True), help="No more than so many a second.")
_DRY = click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
_LIMIT = click.option("--limit", type=click.IntRange(1), help="No more than so many.")
_AGAIN = "run it again to go on"


def filtered(command: F) -> F:
    """Add the filters; the command gets them as *filters*."""

    @functools.wraps(command)
    def wrapper(
        *args: Any, older: float | None, newer: float | None, task: str | None,
        reason: str | None, match: str | None, **given: Any,
    ) -> Any:  # fmt: skip
        filters = Filters(
            task=task, reason=reason, older_than_s=older, newer_than_s=newer, match=match
        )
        return command(*args, filters=filters, **given)

    for option in reversed(_FILTERS):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


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
@filtered
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many.")
@on_brokers
@json_option
def list_command(target: Target, queue: str, filters: Filters, limit: int, as_json: bool) -> None:
    """Show dead letters of QUEUE, oldest first.

    \b
    Examples:
      reliq dead list orders
      reliq dead list orders --reason delivery_limit --older 1d
      reliq dead list orders --match 'Timeout|refused' --json
    """

    def look(inspector: Inspector) -> list[dict[str, Any]]:
        dead_letters = inspector.dead_letters(queue, limit, **filters)
        return [
            out.of_broker(inspector.broker, inspector.view(queue, dead_letter))
            for dead_letter in dead_letters
        ]

    found = target.gather(look)
    rows = [item for items in found.require_some() for item in items]
    if as_json:
        out.dump(rows)
    else:
        out.show(message_table(rows, "dead"), f"{len(rows)} dead letter(s) of {queue}")
    found.complain()


@dead.command()
@queue_argument
@click.argument("tag")
@on_brokers
@json_option
def show(target: Target, queue: str, tag: str, as_json: bool) -> None:
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
    dead_letter = found.require_some()[0]
    if as_json:
        out.dump(dead_letter)
    else:
        table = out.table("field", "value")
        for name, value in dead_letter.items():
            nested = isinstance(value, dict)
            table.add_row(
                out.cell(name), Pretty(out.value_of(value)) if nested else out.cell(value)
            )
        out.show(table)
    found.complain()


def _change(
    target: Target,
    queue: str,
    total: Callable[[Inspector], int],
    steps: Callable[[Inspector], Iterator[int]],
    done: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Do *steps* on each broker that has the queue, and say how many dead letters it was."""

    def work(inspector: Inspector) -> dict[str, Any]:
        number = total(inspector)
        if not dry_run:
            label = f"{queue} {inspector.broker}"
            number = out.progressing(label, number, steps(inspector), _AGAIN)
        names = {"broker": inspector.broker, "queue": queue}
        return {**names, "count": number, "dry_run": dry_run}

    found = target.gather(work)
    rows = found.require_some()
    if as_json:
        out.dump(rows)
    else:
        for row in rows:
            verb = f"would be {done}" if dry_run else done
            click.echo(f"{plain(queue)} at {row['broker']}: {row['count']} {verb}")
    found.complain()


@dead.command()
@queue_argument
@filtered
@_TAGS
@click.option("--to", metavar="QUEUE", help="Into another queue, which must exist.")
@_LIMIT
@_RATE
@_DRY
@on_brokers
@json_option
def replay(
    target: Target, queue: str, filters: Filters, tags: tuple[str, ...], to: str | None,
    limit: int | None, rate: float | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Put dead letters of QUEUE back to be delivered again, with a count of none.

    Ctrl-C or a kill at any point loses and doubles nothing: run it again to go on.

    \b
    Examples:
      reliq dead replay orders --dry-run
      reliq dead replay orders --task shop.ship --newer 1h --rate 50
      reliq dead replay orders --to orders.retry --limit 10
    """
    chosen = tags or None
    _change(
        target,
        queue,
        lambda inspector: inspector.count_dead_letters(queue, chosen, limit=limit, **filters),
        lambda inspector: inspector.replaying(
            queue, chosen, to=to, rate=rate, limit=limit, **filters
        ),
        "replayed",
        dry_run,
        as_json,
    )


@dead.command()
@queue_argument
@filtered
@_TAGS
@_LIMIT
@_RATE
@_DRY
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_brokers
@json_option
def purge(
    target: Target, queue: str, filters: Filters, tags: tuple[str, ...], limit: int | None,
    rate: float | None, dry_run: bool, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Remove dead letters of QUEUE for good; asks first.

    \b
    Examples:
      reliq dead purge orders --older 30d --dry-run
      reliq dead purge orders --reason expired --yes
    """
    chosen = tags or None
    asked: dict[str, int] = {}

    def total(inspector: Inspector) -> int:
        number = inspector.count_dead_letters(queue, chosen, limit=limit, **filters)
        if number and not dry_run:
            where = f"{plain(queue)} at {inspector.broker}"
            question = f"Remove {number} dead letters of {where} for good?"
            out.confirmed(question, inspector.broker, yes)
        asked[inspector.broker] = number
        return number

    def steps(inspector: Inspector) -> Iterator[int]:
        # The oldest, as many as were asked about: what died since was not.
        most = asked[inspector.broker]
        return inspector.purging_dead_letters(queue, chosen, rate=rate, limit=most, **filters)

    _change(target, queue, total, steps, "removed", dry_run, as_json)


@dead.command("export")
@queue_argument
@click.argument("file", type=click.Path(dir_okay=False))
@filtered
@_TAGS
@_LIMIT
@_RATE
@_DRY
@click.option("--resume", is_flag=True, help="Go on with a file that was begun before.")
@on_brokers
@json_option
def export_command(
    target: Target, queue: str, file: str, filters: Filters, tags: tuple[str, ...],
    limit: int | None, rate: float | None, dry_run: bool, resume: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write dead letters of QUEUE to FILE, one JSON object a line; they stay in the queue.

    After Ctrl-C --resume goes on: what is in the file is not written twice.

    \b
    Examples:
      reliq dead export orders orders.jsonl
      reliq dead export orders orders.jsonl --resume
    """
    _one_broker(target)
    chosen = tags or None
    _change(
        target,
        queue,
        lambda inspector: inspector.count_dead_letters(queue, chosen, limit=limit, **filters),
        lambda inspector: inspector.export_dead_letters(
            queue, file, chosen, resume=resume, rate=rate, limit=limit, **filters
        ),
        "written",
        dry_run,
        as_json,
    )


@dead.command("import")
@queue_argument
@click.argument("file", type=click.Path(dir_okay=False))
@filtered
@_TAGS
@_LIMIT
@_RATE
@_DRY
@click.option("--again", is_flag=True, help="Store also what was read from this file before.")
@on_brokers
@json_option
def import_command(
    target: Target, queue: str, file: str, filters: Filters, tags: tuple[str, ...],
    limit: int | None, rate: float | None, dry_run: bool, again: bool, as_json: bool,
) -> None:  # fmt: skip
    """Read dead letters from FILE into QUEUE, where they are dead; each is stored once.

    Run it again after Ctrl-C: what was stored before is not stored twice, also where it
    was replayed or removed since.

    \b
    Examples:
      reliq dead import orders orders.jsonl
      reliq dead import orders orders.jsonl --match 'Timeout'
    """
    _one_broker(target)
    chosen = tags or None
    _change(
        target,
        queue,
        lambda inspector: inspector.count_exported(queue, file, chosen, limit=limit, **filters),
        lambda inspector: inspector.import_dead_letters(
            queue, file, chosen, again=again, rate=rate, limit=limit, **filters
        ),
        "stored",
        dry_run,
        as_json,
    )


def _one_broker(target: Target) -> None:
    if len(target.urls) > 1:
        raise click.UsageError("a file belongs to one broker: give one --url")
