"""``reliq migrate`` (from Kombu's Redis transport and back) and ``reliq move`` (to a broker)."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from reliq import admin, migration
from reliq.failover.brokers import without_password
from reliq.kombu_options import KNOWN

from . import console as out
from .application import Application
from .endings import INTERRUPTED, Refused
from .options import (
    Number,
    address_map_option,
    dry_run_option,
    json_option,
    master_option,
    prefix_option,
    priority_order_option,
)
from .target import target_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reliq.migration import Migration

_PLANNED: Mapping[str, Any] = {
    "queue": "queue",
    ">ready": lambda row: out.count(row["ready"]),
    ">delayed": lambda row: out.count(row["delayed"]),
    ">unacked": lambda row: out.count(row["unacked"]),
    ">dead": lambda row: out.count(row["dead"]),
    ">half way": lambda row: out.count(row["half_way"]),
    ">elsewhere": lambda row: out.count(row["elsewhere"]),
}
_FOLLOW_EVERY_S = 1.0
_NOT_STATED = (None, "default")
_NEEDED = {"sep", "priority_steps"}


def _steps(_context: click.Context, _option: click.Parameter, value: str | None) -> Any:
    try:
        return value if value in _NOT_STATED else [int(step) for step in value.split(",")]
    except ValueError as exc:
        raise click.BadParameter("expected whole numbers, such as 0,3,6,9") from exc


def _escapes(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value in _NOT_STATED:
        return value
    try:
        return value.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except ValueError as exc:
        raise click.BadParameter(rf"{exc}: expected text, or \x06\x16") from exc


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@dry_run_option
@click.option(
    "--unacked-older",
    type=Number(min=0),
    metavar="SECONDS",
    help="Also move messages that Kombu's workers have held unacknowledged for longer than this. "
    "Use 0 if all these workers are dead; otherwise, use more than their visibility_timeout.",
)
@click.option("--follow", is_flag=True, help="Also move new messages, until Ctrl-C.")
@prefix_option
@click.option("--kombu-prefix", help="Kombu's global_keyprefix. Default: that of --prefix.")
@click.option(
    "--sep", callback=_escapes, help=r"Kombu's option sep, or default; accepts \x escapes."
)
@click.option(
    "--priority-steps", callback=_steps, help="Kombu's option, such as 0,3,6,9, or default."
)
@click.option("--unacked-key", help="Kombu's option unacked_key.")
@click.option("--unacked-index-key", help="Kombu's option unacked_index_key.")
@priority_order_option
@master_option
@address_map_option
@json_option
def migrate(
    source: str,
    target: str,
    queues: tuple[str, ...],
    dry_run: bool,
    unacked_older: float | None,
    follow: bool,
    prefix: str,
    kombu_prefix: str | None,
    priority_order: str | None,
    master_name: str | None,
    address_map: Mapping[str, str],
    as_json: bool,
    **layout: Any,
) -> None:
    """Move messages from Kombu's Redis transport to reliq, or back.

    FROM and TO are a URL of each kind. Without a QUEUE, all durable queues are moved. Workers
    and publishers of both sides may keep running. Each message is moved once. After an
    interruption, run the command again with the same two URLs.

    FROM or TO is laid out by Kombu's options global_keyprefix, sep and priority_steps. They come
    from the options below, or from the application: celery -A proj reliq migrate ...

    Exits with 0 if all waiting messages have moved, and with 2 otherwise; names their lists.

    \b
    Examples:
      reliq migrate redis://old:6379/0 reliq://new:6379/0 --dry-run
      reliq migrate redis://old:6379/0 reliq://new:6379/0 --sep : --priority-steps 0,5,9
      reliq migrate redis://old:6379/0 reliq://new:6379/0 --follow
      reliq migrate redis://old:6379/0 reliq://new:6379/0 --unacked-older 0
      celery -A proj reliq migrate reliq://new:6379/0 redis://old:6379/0
    """
    if dry_run and (follow or unacked_older is not None):
        raise click.UsageError("--dry-run changes nothing: leave --follow and --unacked-older out")
    if source.startswith("reliq") and not dry_run:
        _require_layout(layout)
    common = {"master_name": master_name}
    ours = {"global_keyprefix": prefix, "priority_order": priority_order, **common}
    theirs = {"global_keyprefix": prefix if kombu_prefix is None else kombu_prefix, **common}
    given = _given({**theirs, **layout}).items()
    with migration.Migration(
        source,
        target,
        kombu_options={name: value for name, value in given if name in KNOWN if value != "default"},
        transport_options=_given({**ours, "address_map": address_map}),
    ) as moving:
        if dry_run:
            plans = [asdict(moving.plan(queue)) for queue in queues or moving.queues()]
            out.answer(plans, as_json, lambda rows: [out.listing(rows, _PLANNED)])
            _require_all(moving, source, queues)
            return
        moved: dict[str, Counter[str]] = defaultdict(lambda: Counter(asdict(migration.Step(0))))
        try:
            if unacked_older is not None:
                for queue, step in moving.run_unacked(unacked_older, queues or None):
                    moved[queue].update(asdict(step))
            _run(moving, queues, moved)
            while follow:
                time.sleep(_FOLLOW_EVERY_S)
                _run(moving, queues, moved)
        except KeyboardInterrupt:
            if not follow:
                _print_moved(moved, as_json)
                click.echo("interrupted; run the command again to continue", err=True)
                click.get_current_context().exit(INTERRUPTED)
        _print_moved(moved, as_json)
        _report_held(moving, [queue for queue, total in moved.items() if not total["moved"]])
        _require_all(moving, source, queues)


def _report_held(moving: Migration, queues: Sequence[str]) -> None:
    for queue in queues:
        if held := moving.plan(queue).unacked:
            back = "return when the worker stops, or after its visibility_timeout if killed"
            click.echo(f"{queue}: workers of the other side hold {held}; they {back}", err=True)


def _require_all(moving: Migration, source: str, queues: Sequence[str]) -> None:
    """Raise Refused if waiting messages remain at the source, or if it has no queue."""
    if left := moving.left(queues):
        lists = ", ".join(f"{key!r} ({out.count(length)})" for key, length in left.items())
        raise Refused(
            f"{sum(left.values())} waiting messages remain at the source, in lists of no known "
            f"queue: {lists}. Run it again with the application's --sep, --priority-steps and "
            "--kombu-prefix, or as celery -A proj reliq migrate; or name the queues that are "
            "bound to no exchange"
        )
    if not (queues or moving.queues()):
        place = without_password(source)
        raise Refused(f"no queues at {place}: check the number of the database, and the prefix")


def _require_layout(layout: Mapping[str, Any]) -> None:
    """Raise UsageError unless the options or the application state Kombu's layout."""
    stated = {name for name, value in layout.items() if value is not None}
    if _application() is None and not stated >= _NEEDED:
        raise click.UsageError(
            "workers of redis:// find a message only in the list of their own sep and "
            "priority_steps. Add --sep and --priority-steps as these workers have them (Kombu's "
            "own: --sep default --priority-steps default), or use: celery -A proj reliq migrate"
        )


def _application() -> Application | None:
    return click.get_current_context().find_object(Application)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the stated options, and those of the application."""
    application = _application()
    its = {} if application is None else application.options()
    return its | {name: value for name, value in options.items() if value not in (None, "")}


def _run(moving: Migration, queues: Sequence[str], moved: dict[str, Counter[str]]) -> None:
    for queue in queues or moving.queues():
        total = moved[queue]
        with out.progress(queue, None) as advance:
            for step in moving.run(queue):
                total.update(asdict(step))
                advance(step.moved)


def _print_moved(moved: dict[str, Counter[str]], as_json: bool) -> None:
    totals = [{"queue": queue, **total} for queue, total in moved.items()]
    out.answer(totals, as_json, lambda rows: map(_line, rows))


def _line(row: dict[str, Any]) -> str:
    details = [f"{row['delayed']} delayed"] if row["delayed"] else []
    details += [f"{row['dead']} unreadable, now dead letters"] if row["dead"] else []
    details += [f"{row['early']} delivered early: not Celery tasks"] if row["early"] else []
    more = f" ({', '.join(details)})" if details else ""
    return f"{row['queue']}: {row['moved']} moved{more}"


# -- move


@click.command()
@click.argument("queue", required=False)
@click.option("--all", "everything", is_flag=True, help="Move all durable queues.")
@click.option("--from", "source", required=True, metavar="URL", help="The source broker.")
@click.option("--to", "target", required=True, metavar="URL", help="The target broker.")
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
    """Move ready, delayed and dead messages of QUEUE, or of all queues, to another broker.

    Each message is stored there once. After an interruption, run the command again. Messages
    held by consumers stay; to move those that return, run the command again.

    \b
    Examples:
      reliq move orders --from reliq://b:6379/0 --to reliq://a:6379/0
      reliq move --all --from reliq://b:6379/0 --to reliq://a:6379/0
    """
    if (queue is None) != everything:
        raise click.UsageError("expected a QUEUE or --all")
    moved: dict[str, int] = {}
    options = target_of((source,), prefix, master_name, address_map).options
    with (
        admin.Inspector(source, options) as from_,
        admin.Inspector(target, options, create=True) as to,
    ):
        for name in [queue] if queue is not None else from_.durable_queues():
            status = from_.status(name)
            total = status.ready + status.delayed + status.dead
            moved[name] = out.progressing(name, total, from_.move(name, to))
    lines = (f"{name}: {count} moved" for name, count in moved.items())
    out.answer(moved, as_json, lambda _: lines)
