"""``reliq spool``: what waits in a publisher's journal, and forwarding it by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from kombu import Connection

from reliq.admin.spools import spool_status
from reliq.spool.journal import JOURNALS
from reliq.transports.forwarding import forward
from reliq.units import duration, size

from . import console as out
from .options import broker_options, json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .target import Target


@click.group()
def spool() -> None:
    """Inspect and forward a spool: what was published while no broker answered."""


@spool.command("status")
@click.argument("path")
@json_option
def spool_status_command(path: str, as_json: bool) -> None:
    """Show what waits in the spool at PATH: how many, how old, for which queues.

    \b
    Examples:
      reliq spool status /var/spool/shop.db
    """
    found = asdict(spool_status(path))
    out.answer(found, as_json, _shown)


def _shown(found: dict[str, Any]) -> Sequence[Any]:
    columns = ("exchange", "routing key", "publishes", "oldest")
    rows = out.listing(columns, columns[2:], found["routes"], _cells)
    ends = ", ".join(f"{found[name]} {name}" for name in ("forwarded", "expired", "dropped"))
    return rows, f"{found['publishes']} publishes, {size(found['bytes'])}; so far {ends}"


def _cells(item: dict[str, Any]) -> Sequence[Any]:
    *route, number, oldest_s = item.values()
    return (*route, out.count(number), duration(oldest_s))


@spool.command("forward")
@click.argument("path")
@broker_options
@json_option
def spool_forward(path: str, target: Target, as_json: bool) -> None:
    """Forward what waits in the spool at PATH to a broker, each message once.

    Repeatable: a command that was cut off, or another forwarder, does no harm.

    \b
    Examples:
      reliq spool forward /var/spool/shop.db --url reliq://localhost:6379/0
    """
    journal = JOURNALS.at(path)
    with Connection(target.urls[0], transport_options=dict(target.options)) as connection:
        connection.connect()
        broker = connection.transport
        redeclare = broker.declarations.redeclare
        total = forward(journal, broker.link, redeclare, broker.options)
    found = {"forwarded": total, "left": journal.holds}
    words = "{forwarded} forwarded, {left} wait in the spool"
    out.answer(found, as_json, lambda found: [words.format(**found)])
