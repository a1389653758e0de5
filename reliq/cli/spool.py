"""``reliq spool``: what waits in a publisher's journal, and forwarding it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import kombu

from reliq import admin, transports
from reliq.errors import ReliqError
from reliq.spool.journal import JOURNALS
from reliq.units import duration, size

from . import console as out
from .options import json_option, on_brokers

if TYPE_CHECKING:
    from .target import Target

# Processes forward every few seconds where a broker answers.
_STUCK_S = 120.0


@click.group()
def spool() -> None:
    """Inspect and forward a spool: what was published while no broker answered."""


@spool.command("status")
@click.argument("path")
@json_option
def spool_status(path: str, as_json: bool) -> None:
    """Show what waits in the spool at PATH: how many, how old, for which queues.

    \b
    Examples:
      reliq spool status /var/spool/shop.db
    """
    found = JOURNALS.at(path).status()
    columns: dict[str, Any] = {
        "exchange": "exchange",
        "routing key": "routing_key",
        ">publishes": lambda row: out.count(row["publishes"]),
        ">oldest": lambda row: duration(row["oldest_s"]),
    }
    line = (
        f"{found['publishes']} publishes, {size(found['bytes'])}; so far {found['expired']} "
        f"expired, {found['doubtful']} perhaps stored twice"
    )
    out.answer(found, as_json, lambda found: [out.listing(found["routes"], columns), line])


@spool.command("forward")
@click.argument("path")
@on_brokers
def spool_forward(path: str, target: Target) -> None:
    """Forward what waits in the spool at PATH to a broker, each message once.

    Repeatable: a command that was cut off, or another forwarder, does no harm.

    \b
    Examples:
      reliq spool forward /var/spool/shop.db --url reliq://localhost:6379/0
    """
    journal = JOURNALS.at(path)
    with kombu.Connection(target.urls[0], transport_options=dict(target.options)) as connection:
        connection.connect()
        total = transports.forward(journal, connection.transport)
    found = {"forwarded": total, "left": journal.holds}
    words = "{forwarded} forwarded, {left} wait in the spool"
    out.answer(found, target.as_json, lambda found: [words.format(**found)])


def examine(url: str) -> admin.Finding:
    """Return the doctor's finding about the spool at *url*."""
    try:
        journal = JOURNALS.at(url)
        status = journal.status() if journal.holds else None
    except ReliqError as exc:
        return admin.Finding("spool", "error", str(exc), "correct the URL, or move the file away")
    if status is None:
        return admin.Finding("spool", "ok", f"no publishes wait in {journal}")
    return admin.Finding(
        "spool",
        "warning" if status["oldest_s"] > _STUCK_S else "info",
        f"{status['publishes']} publishes wait in {journal}, for {duration(status['oldest_s'])}",
        "any process that lists the spool forwards them when a broker answers: start one, or "
        "run: reliq spool forward PATH --url BROKER",
    )
