"""``reliq spool``: inspect a spool, and forward its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import kombu

from reliq import admin, transports
from reliq.errors import ReliqError
from reliq.spool.journal import JOURNALS
from reliq.units import duration, size

from . import console as out
from .endings import Group
from .options import json_option, on_brokers

if TYPE_CHECKING:
    from .target import Target

# While a broker answers, processes forward every few seconds.
_STUCK_S = 120.0


@click.group(cls=Group)
def spool() -> None:
    """Inspect or forward a spool: messages published while no broker answered."""


@spool.command("status")
@click.argument("path")
@json_option
def spool_status(path: str, as_json: bool) -> None:
    """Show number, age and queues of the messages in the spool at PATH.

    \b
    Examples:
      reliq spool status /var/spool/shop.db
    """
    status = JOURNALS.at(path).status()
    columns: dict[str, Any] = {
        "exchange": "exchange",
        "routing key": "routing_key",
        ">publishes": lambda row: out.count(row["publishes"]),
        ">oldest": lambda row: duration(row["oldest_s"]),
    }
    line = (
        f"{status['publishes']} publishes, {size(status['bytes'])}; in total {status['expired']} "
        f"expired, {status['doubtful']} possibly stored twice"
    )
    out.answer(status, as_json, lambda status: [out.listing(status["routes"], columns), line])


@spool.command("forward")
@click.argument("path")
@on_brokers
def spool_forward(path: str, target: Target) -> None:
    """Forward the messages in the spool at PATH to a broker, each once.

    You can interrupt and repeat the command. Other processes may forward at the same time.

    \b
    Examples:
      reliq spool forward /var/spool/shop.db --url reliq://localhost:6379/0
    """
    journal, reasons = JOURNALS.at(path), list[str]()
    journal.status()  # raises an error if the file does not exist
    with kombu.Connection(target.urls[0], transport_options=dict(target.options)) as connection:
        connection.connect()
        total = transports.forward(journal, connection.transport, on_reason=reasons.append)
    outcome = {"forwarded": total, "left": journal.holds, "reason": "".join(reasons)}
    words = "{forwarded} forwarded, {left} left in the spool" + (": {reason}" if reasons else "")
    out.answer(outcome, target.as_json, lambda outcome: [words.format(**outcome)])


def examine(url: str) -> admin.Finding:
    """Return the doctor's finding for the spool at *url*."""
    try:
        journal = JOURNALS.at(url)
        status = journal.status() if journal.holds else None
    except ReliqError as exc:
        return admin.Finding("spool", "error", str(exc), "correct the URL, or move the file")
    if status is None:
        return admin.Finding("spool", "ok", f"no publishes in {journal}")
    return admin.Finding(
        "spool",
        "warning" if status["oldest_s"] > _STUCK_S else "info",
        f"{status['publishes']} publishes in {journal}, up to {duration(status['oldest_s'])} old",
        "start a process whose URLs include the spool (it forwards them when a broker answers), or "
        "run: reliq spool forward PATH --url BROKER",
    )
