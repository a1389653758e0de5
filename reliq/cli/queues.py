"""``reliq queue``: pause, resume, purge, delete and set, and ``reliq peek``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from reliq.admin.names import STATES
from reliq.printable import plain
from reliq.units import duration

from . import console as out
from .endings import Group
from .options import (
    dry_run_option,
    limit_option,
    on_brokers,
    queue_argument,
    skip_option,
    yes_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from reliq.admin import Inspector

    from .target import Target


@click.group(cls=Group)
def queue() -> None:
    """Pause, resume, purge or delete a queue, or change its settings.

    \b
    Examples:
      reliq queue pause orders
      reliq queue set orders x-delivery-limit=5
    """


def _set_paused(target: Target, name: str, paused: bool) -> None:
    def work(inspector: Inspector) -> dict[str, Any]:
        (inspector.pause if paused else inspector.resume)(name)
        return {"paused": paused}

    target.change("queue", name, work, lambda _: "paused" if paused else "resumed")


@queue.command()
@queue_argument
@on_brokers
def pause(target: Target, queue: str) -> None:
    """Stop deliveries from QUEUE until it is resumed. QUEUE still accepts messages.

    \b
    Example:
      reliq queue pause orders
    """
    _set_paused(target, queue, True)


@queue.command()
@queue_argument
@on_brokers
def resume(target: Target, queue: str) -> None:
    """Resume deliveries from QUEUE, and wake its consumers.

    \b
    Example:
      reliq queue resume orders
    """
    _set_paused(target, queue, False)


@queue.command()
@queue_argument
@dry_run_option
@yes_option
@on_brokers
def purge(target: Target, queue: str, dry_run: bool, yes: bool) -> None:
    """Remove the ready and delayed messages of QUEUE permanently, after confirmation.

    Messages held by consumers and dead letters stay.

    \b
    Examples:
      reliq queue purge orders --dry-run
      reliq queue purge orders --yes
    """

    def work(inspector: Inspector) -> dict[str, Any]:
        if yes and not dry_run:  # purge without counting: a partition may be unreachable
            return {"count": inspector.purge(queue), "dry_run": False}
        status = inspector.status(queue)
        number = status.ready + status.delayed
        if number and not dry_run:
            where = f"{plain(queue)} at {inspector.broker}"
            out.confirmed(
                f"Remove {status.ready} ready and {status.delayed} delayed messages of {where} "
                "permanently?",
                inspector.broker,
                yes,
            )
            number = inspector.purge(queue)
        return {"count": number, "dry_run": dry_run}

    target.change("queue", queue, work, out.counted("removed"))


@queue.command()
@queue_argument
@click.option("--if-empty", is_flag=True, help="Only if the queue has no waiting messages.")
@click.option("--if-unused", is_flag=True, help="Only if the queue has no consumers.")
@yes_option
@on_brokers
def delete(target: Target, queue: str, if_empty: bool, if_unused: bool, yes: bool) -> None:
    """Delete QUEUE with its bindings and all messages and dead letters, after confirmation.

    \b
    Examples:
      reliq queue delete orders --if-empty --if-unused
      reliq queue delete orders --yes
    """

    def work(inspector: Inspector) -> dict[str, Any]:
        status = inspector.status(queue)
        out.confirmed(
            f"Delete {plain(queue)} at {inspector.broker} with {status.ready} ready, "
            f"{status.delayed} delayed, {status.unacked} unacked and {status.dead} dead "
            f"messages, and {status.consumers} consumers?",
            inspector.broker,
            yes,
        )
        return {"count": inspector.delete(queue, if_empty=if_empty, if_unused=if_unused)}

    target.change("queue", queue, work, lambda row: f"deleted with {row['count']} waiting messages")


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"expected NAME=VALUE, or NAME= to reset; got {text!r}")
    full = name if name.startswith("x-") else f"x-{name}"
    if not value:
        return full, None
    return full, int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else value


@queue.command("set")
@queue_argument
@click.argument("settings", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--partitions", type=int, help="Number of partitions; the same as partitions=N.")
@on_brokers
def set_(target: Target, queue: str, settings: tuple[str, ...], partitions: int | None) -> None:
    """Change settings of QUEUE while it is in use, or show the current settings.

    The settings are x-concurrency, x-delivery-limit, x-max-length, x-message-ttl, x-overflow,
    x-partitions, x-rate and x-visibility-timeout. The prefix x- is optional; times are in
    milliseconds. The values apply
    from the next publish, delivery or lease, until the queue is deleted. Applications may
    still declare the old values. NAME= restores the declared value.

    \b
    Examples:
      reliq queue set orders
      reliq queue set orders delivery-limit=5 max-length=100000
      reliq queue set orders delivery-limit=
      reliq queue set orders --partitions 8
    """
    changes = dict(map(_setting, settings))
    if partitions is not None:
        changes["x-partitions"] = partitions

    def work(inspector: Inspector) -> dict[str, Any]:
        held = inspector.configure(queue, changes) if changes else inspector.settings(queue)
        return {"settings": held}

    def sentence(row: dict[str, Any]) -> str:
        held = (f"{name}={plain(value)}" for name, value in row["settings"].items())
        return " ".join(held) or "no settings"

    target.change("queue", queue, work, sentence)


def message_table(rows: Sequence[dict[str, Any]], state: str) -> Table:
    """Return a table of messages in one state; with several queues, it names the queue of each."""
    special: dict[str, dict[str, Any]] = {
        "ready": {},
        "delayed": {"due in": lambda row: duration(max(row["due_ms"] - _now_ms(row), 0) / 1000)},
        "unacked": {">lease": _lease, "consumer": "consumer"},
        "dead": {
            "died": lambda row: f"{duration(max(_now_ms(row) - row['died_ms'], 0) / 1000)} ago",
            "reason": "reason",
            "consumer": "consumer",
            "error": "error",
        },
    }
    several = len({row["queue"] for row in rows}) > 1
    columns: dict[str, Any] = {
        **({"queue": "queue"} if several else {}),
        "tag": "tag",
        ">age": lambda row: duration(row["age_s"]),
        "task": lambda row: row["task"] or "-",
        "id": lambda row: row["id"] or "-",
        "args": _arguments,
        ">count": lambda row: out.count(row["count"]),
    }
    less_important = ("age", "count", "id", "consumer")
    return out.listing(rows, {**columns, **special[state]}, optional=less_important)


def _now_ms(row: dict[str, Any]) -> float:
    return float(row["published_ms"] + row["age_s"] * 1000)


def _lease(row: dict[str, Any]) -> str:
    until = row["lease_until_ms"]
    return duration(None if until is None else max(until - _now_ms(row), 0) / 1000)


def _arguments(row: dict[str, Any]) -> str:
    args, kwargs = row["args"], row["kwargs"]
    if args is None:
        return row["body"] or "-"
    return args if kwargs in {None, "{}"} else f"{args} {kwargs}"


@click.command()
@queue_argument
@click.option("--state", type=click.Choice(STATES), default="ready", show_default=True)
@limit_option(20)
@skip_option
@on_brokers
def peek(target: Target, queue: str, state: str, limit: int, skip: int) -> None:
    """Show messages of QUEUE without reserving them.

    Bodies are not deserialised. Arguments are shown in Celery's text form (argsrepr). A body is
    shown, unchanged, only if it is JSON or text.

    \b
    Examples:
      reliq peek orders
      reliq peek orders --state unacked --limit 5
      reliq peek orders --state delayed --json
    """
    target.answer(
        lambda inspector: inspector.peek(queue, state, limit, skip),
        lambda rows: (message_table(rows, state), f"{len(rows)} {state} message(s) of {queue}"),
    )
