"""``reliq queue``: pause, resume, purge, delete and set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from reliq.printable import plain

from . import console as out
from .options import dry_run_option, on_brokers, queue_argument, yes_option

if TYPE_CHECKING:
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


def _set_paused(target: Target, name: str, paused: bool, as_json: bool) -> None:
    def work(inspector: Inspector) -> dict[str, Any]:
        (inspector.pause if paused else inspector.resume)(name)
        return {"paused": paused}

    target.change(name, work, lambda _: "paused" if paused else "resumed", as_json)


@queue.command()
@queue_argument
@on_brokers
def pause(target: Target, queue: str, as_json: bool) -> None:
    """Let QUEUE accept and keep messages, and give none out until it is resumed.

    \b
    Example:
      reliq queue pause orders
    """
    _set_paused(target, queue, True, as_json)


@queue.command()
@queue_argument
@on_brokers
def resume(target: Target, queue: str, as_json: bool) -> None:
    """Let QUEUE give out messages again, and wake its consumers.

    \b
    Example:
      reliq queue resume orders
    """
    _set_paused(target, queue, False, as_json)


@queue.command()
@queue_argument
@dry_run_option
@yes_option
@on_brokers
def purge(target: Target, queue: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove what waits in QUEUE, ready and delayed, for good; asks first.

    What consumers hold and what is dead stays.

    \b
    Examples:
      reliq queue purge orders --dry-run
      reliq queue purge orders --yes
    """

    def work(inspector: Inspector) -> dict[str, Any]:
        if yes and not dry_run:  # without a look: a partition that is away keeps from no other
            return {"count": inspector.purge(queue), "dry_run": False}
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

    target.change(queue, work, out.counted("removed"), as_json)


@queue.command()
@queue_argument
@click.option("--if-empty", is_flag=True, help="Only if no message waits in it.")
@click.option("--if-unused", is_flag=True, help="Only if nobody consumes from it.")
@yes_option
@on_brokers
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

    target.change(queue, work, lambda row: f"deleted, {row['count']} messages waited", as_json)


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
@click.option("--partitions", type=int, help="Divide it into so many; the same as partitions=N.")
@on_brokers
def set_(
    target: Target, queue: str, settings: tuple[str, ...], partitions: int | None, as_json: bool
) -> None:
    """Change settings of QUEUE while it is in use, or show those that hold.

    x-delivery-limit, x-max-length, x-message-ttl, x-overflow, x-partitions and
    x-visibility-timeout ("x-" may be left out; times in ms). They hold from the next
    publish, delivery or lease on, until the queue is deleted; applications go on
    declaring it as before.
    NAME= goes back to what was declared.

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

    def said(row: dict[str, Any]) -> str:
        held = (f"{name}={plain(value)}" for name, value in row["settings"].items())
        return " ".join(held) or "no settings"

    target.change(queue, work, said, as_json)
