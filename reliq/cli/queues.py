"""``reliq queue``: pause, resume, purge, delete and set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from reliq.printable import plain

from . import console as out
from .target import json_option, on_brokers, queue_argument

if TYPE_CHECKING:
    from collections.abc import Callable

    from reliq.admin import Inspector

    from .target import Target


@click.group()
def queue() -> None:
    """Pause, resume, purge, delete a queue, or change its settings.

    \b
    Examples:
      reliq queue pause orders
      reliq queue set orders x-delivery-limit=5
    """


def _each(
    target: Target,
    name: str,
    work: Callable[[Inspector], dict[str, Any]],
    said: Callable[[dict[str, Any]], str],
    as_json: bool,
) -> None:
    def one(inspector: Inspector) -> dict[str, Any]:
        return {"broker": inspector.broker, "queue": name, **work(inspector)}

    found = target.gather(one)
    rows = found.require_some()
    if as_json:
        out.dump(rows)
    else:
        for row in rows:
            click.echo(f"{plain(name)} at {row['broker']}: {said(row)}")
    found.complain()


@queue.command()
@queue_argument
@on_brokers
@json_option
def pause(target: Target, queue: str, as_json: bool) -> None:
    """Let QUEUE accept and keep messages, and give none out until it is resumed.

    \b
    Example:
      reliq queue pause orders
    """

    def work(inspector: Inspector) -> dict[str, Any]:
        inspector.pause(queue)
        return {"paused": True}

    _each(target, queue, work, lambda _: "paused", as_json)


@queue.command()
@queue_argument
@on_brokers
@json_option
def resume(target: Target, queue: str, as_json: bool) -> None:
    """Let QUEUE give out messages again, and wake its consumers.

    \b
    Example:
      reliq queue resume orders
    """

    def work(inspector: Inspector) -> dict[str, Any]:
        inspector.resume(queue)
        return {"paused": False}

    _each(target, queue, work, lambda _: "resumed", as_json)


@queue.command()
@queue_argument
@click.option("--dry-run", is_flag=True, help="Only say how many it would be.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_brokers
@json_option
def purge(target: Target, queue: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove what waits in QUEUE, ready and delayed, for good; asks first.

    What consumers hold and what is dead stays.

    \b
    Examples:
      reliq queue purge orders --dry-run
      reliq queue purge orders --yes
    """

    def work(inspector: Inspector) -> dict[str, Any]:
        status = inspector.status(queue)
        number = status.ready + status.delayed
        if number and not dry_run:
            where = f"{plain(queue)} at {inspector.broker}"
            out.confirmed(
                f"Remove {status.ready} ready and {status.delayed} delayed messages of {where} "
                "for good?",
                inspector.broker,
                yes,
            )
            number = inspector.purge(queue)
        return {"count": number, "dry_run": dry_run}

    verb = "would be removed" if dry_run else "removed"
    _each(target, queue, work, lambda row: f"{row['count']} {verb}", as_json)


@queue.command()
@queue_argument
@click.option("--if-empty", is_flag=True, help="Only if no message waits in it.")
@click.option("--if-unused", is_flag=True, help="Only if nobody consumes from it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_brokers
@json_option
def delete(
    target: Target, queue: str, if_empty: bool, if_unused: bool, yes: bool, as_json: bool
) -> None:
    """Delete QUEUE, its bindings and everything in it, dead letters too; asks first.

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

    _each(target, queue, work, lambda row: f"deleted, {row['count']} messages waited", as_json)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"expected NAME=VALUE, or NAME= to take it back; got {text!r}")
    full = name if name.startswith("x-") else f"x-{name}"
    if not value:
        return full, None
    return full, int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else value


@queue.command("set")
@queue_argument
@click.argument("settings", nargs=-1, metavar="[NAME=VALUE]...")
@on_brokers
@json_option
def set_(target: Target, queue: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Change settings of QUEUE while it is in use, or show those that hold.

    x-delivery-limit, x-max-length, x-message-ttl, x-overflow and x-visibility-timeout
    ("x-" may be left out; times in ms). They hold from the next publish, delivery or
    lease on, until the queue is deleted; applications go on declaring it as before.
    NAME= goes back to what was declared.

    \b
    Examples:
      reliq queue set orders
      reliq queue set orders delivery-limit=5 max-length=100000
      reliq queue set orders delivery-limit=
    """
    changes = dict(map(_setting, settings))

    def work(inspector: Inspector) -> dict[str, Any]:
        held = inspector.configure(queue, changes) if changes else inspector.settings(queue)
        return {"settings": held}

    def said(row: dict[str, Any]) -> str:
        held = (f"{name}={plain(value)}" for name, value in row["settings"].items())
        return " ".join(held) or "no settings"

    _each(target, queue, work, said, as_json)
