"""``reliq limit``: set, show and clear the limits of a queue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from . import console as out
from .completion import queue_names
from .endings import Group
from .options import on_brokers, queue_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from reliq.admin import Inspector, QueueLimits

    from .target import Target


@click.group(cls=Group)
def limit() -> None:
    """Set, show or clear the limits of a queue: messages in hand, and starts in a time.

    \b
    Examples:
      reliq limit set orders --concurrency 200 --rate 500/s
      reliq limit show
    """


def _table(rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
    if not rows:
        return ["No queue has a limit."]
    columns: dict[str, str | Callable[[dict[str, Any]], Any]] = {
        "queue": "queue",
        ">concurrency": lambda row: _in_force(row, "concurrency"),
        ">rate": lambda row: _in_force(row, "rate"),
        ">in hand": lambda row: out.count(row["unacked"]),
        ">ready": lambda row: out.count(row["ready"]),
        "at its limit": lambda row: row["reached"] or "no",
    }
    return [out.listing(rows, columns)]


def _in_force(row: dict[str, Any], name: str) -> str:
    value, declared = row[name] or "none", row[f"declared_{name}"] or "none"
    return str(value) if value == declared else f"{value} (declared: {declared})"


def _change(target: Target, queue: str, changes: dict[str, Any]) -> None:
    """Change the limits of a queue at each broker, and print the new ones."""

    def work(inspector: Inspector) -> Iterable[QueueLimits]:
        inspector.configure(queue, changes)
        return inspector.limits(queue)

    target.answer(work, _table)


@limit.command("set")
@queue_argument
@click.option(
    "--concurrency",
    metavar="N",
    help="The number of messages that all consumers together may hold at a time; none: no limit.",
)
@click.option(
    "--rate",
    help="The number of messages that may start in a time: 500/s, 100/m, '1000/h burst 20'; none: "
    "no limit.",
)
@on_brokers
def set_(target: Target, queue: str, concurrency: str | None, rate: str | None) -> None:
    """Set limits of QUEUE, which apply at once, and print its limits.

    They precede the declared limits, also those of later declarations, until reliq limit clear. A
    lower limit stops no running task.

    \b
    Examples:
      reliq limit set orders --concurrency 20 --rate 100/m
      reliq limit set orders --rate '1000/h burst 20'
      reliq limit set orders --concurrency none
    """
    changes: dict[str, Any] = {} if rate is None else {"x-rate": rate}
    if concurrency is not None:
        number = int(concurrency) if re.fullmatch("[0-9]{1,18}", concurrency) else concurrency
        changes["x-concurrency"] = -1 if concurrency == "none" else number
    if not changes:
        raise click.UsageError("expected --concurrency or --rate, such as --concurrency 20")
    _change(target, queue, changes)


@limit.command()
@click.argument("queue", required=False, shell_complete=queue_names)
@on_brokers
def show(target: Target, queue: str | None) -> None:
    """Show the limits of QUEUE, or of each queue that has one, and their use now.

    A declared limit is shown if it differs from the limit in force.

    \b
    Examples:
      reliq limit show
      reliq limit show orders --json
    """
    target.answer(lambda inspector: inspector.limits(queue), _table)


@limit.command()
@queue_argument
@click.option("--concurrency", is_flag=True, help="Only the limit of messages in hand.")
@click.option("--rate", is_flag=True, help="Only the rate.")
@on_brokers
def clear(target: Target, queue: str, concurrency: bool, rate: bool) -> None:
    """Restore the declared limits of QUEUE, and print its limits.

    \b
    Examples:
      reliq limit clear orders
      reliq limit clear orders --rate
    """
    chosen = {"x-concurrency": concurrency, "x-rate": rate}
    every = not any(chosen.values())
    _change(target, queue, {name: None for name, given in chosen.items() if given or every})
