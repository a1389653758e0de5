"""``reliq peek``: messages where they are, and the table that dead letters share with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reliq.admin.names import STATES
from reliq.units import duration

from . import console as out
from .options import on_brokers, queue_argument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from .target import Target


def message_table(rows: Sequence[dict[str, Any]], state: str) -> Table:
    """Return messages of one state as a table."""
    special = {
        "ready": (),
        "delayed": ("due in",),
        "unacked": ("lease", "consumer"),
        "dead": ("died", "reason", "consumer", "error"),
    }[state]
    return out.listing(
        ("tag", "age", "task", "id", "args", "count", *special),
        ("age", "count", "lease"),
        rows,
        lambda item: _message_cells(item, state),
    )


def _message_cells(item: dict[str, Any], state: str) -> Sequence[Any]:
    now_ms = item["published_ms"] + item["age_s"] * 1000
    extra: Sequence[Any] = ()
    if state == "delayed":
        extra = (duration(max(item["due_ms"] - now_ms, 0) / 1000),)
    elif state == "unacked":
        until = item["lease_until_ms"]
        left = None if until is None else max(until - now_ms, 0) / 1000
        extra = (duration(left), item["consumer"])
    elif state == "dead":
        died = duration(max(now_ms - item["died_ms"], 0) / 1000) + " ago"
        extra = (died, item["reason"], item["consumer"], item["error"])
    args = item["args"]
    if args is not None and item["kwargs"] not in {None, "{}"}:
        args += f" {item['kwargs']}"
    return (
        item["tag"],
        duration(item["age_s"]),
        item["task"] or "-",
        item["id"] or "-",
        args if args is not None else item["body"] or "-",
        out.count(item["count"]),
        *extra,
    )


@click.command()
@queue_argument
@click.option("--state", type=click.Choice(STATES), default="ready", show_default=True)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@click.option("--skip", type=click.IntRange(0), default=0, help="How many to pass over.")
@on_brokers
def peek(target: Target, queue: str, state: str, limit: int, skip: int, as_json: bool) -> None:
    """Show messages of QUEUE without taking them.

    Bodies are not deserialised: arguments are shown as Celery wrote them for people
    (argsrepr), a body only where it is JSON or text, as it stands there.

    \b
    Examples:
      reliq peek orders
      reliq peek orders --state unacked --limit 5
      reliq peek orders --state delayed --json
    """
    target.answer(
        lambda inspector: inspector.peek(queue, state, limit, skip),
        as_json,
        lambda rows: (message_table(rows, state), f"{len(rows)} {state} message(s) of {queue}"),
    )
