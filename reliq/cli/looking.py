"""Commands that look for what is wrong: consumers, audit, doctor."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from reliq.admin.audit import HERE, LEFT
from reliq.printable import plain

from . import console as out
from .target import json_option, on_brokers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reliq.admin import Inspector

    from .target import Target

_SEVERITIES = {"ok": "green", "info": "cyan", "warning": "yellow", "error": "bold red"}


# -- consumers


@click.command()
@on_brokers
@json_option
def consumers(target: Target, as_json: bool) -> None:
    """Show who consumes: process, pool, queues, how much it holds, its last heartbeat.

    \b
    Examples:
      reliq consumers --url reliq://localhost:6379/0
      reliq consumers --json
    """

    def look(inspector: Inspector) -> list[dict[str, Any]]:
        about = [out.of_broker(inspector.broker, item) for item in inspector.consumers()]
        now_ms = inspector.now_ms()
        for item in about:
            item["since_s"] = max(now_ms - item["started_ms"], 0) / 1000
            item["seen_s"] = max(now_ms - item["seen_ms"], 0) / 1000
        return about

    found = target.gather(look)
    rows = [item for items in found.require_some() for item in items]
    if as_json:
        out.dump(rows)
    else:
        columns = ("host", "pid", "pool", "queues", "held", "since", "heartbeat", "connected")
        right = ("pid", "held", "since", "heartbeat")
        cells = [(item["broker"], _consumer_cells(item)) for item in rows]
        table = out.listing((*columns, "version", "id"), right, cells)
        out.show(table, f"{len(rows)} consumer(s)")
    found.complain()


def _consumer_cells(item: dict[str, Any]) -> Sequence[Any]:
    return (
        item["host"],
        item["pid"],
        item["pool"] or "-",
        ", ".join(item["queues"]),
        out.count(item["held"]),
        out.duration(item["since_s"]),
        out.duration(item["seen_s"]) + " ago",
        Text("yes", "green") if item["connected"] else Text("NO", "bold red"),
        item["version"],
        item["id"],
    )


# -- audit


@click.command()
@on_brokers
@json_option
def audit(target: Target, as_json: bool) -> None:
    """Check each queue's ledger: every message ever published is accounted for.

    Exits with 1 if a queue does not balance, with 2 if the broker cannot be asked.

    \b
    Examples:
      reliq audit --url reliq://localhost:6379/0
      reliq audit --json
    """
    found = target.gather(
        lambda inspector: [out.of_broker(inspector.broker, item) for item in inspector.audit()]
    )
    rows = [item for items in found.require_some() for item in items]
    wrong = [item["queue"] for item in rows if not item["balanced"]]
    if as_json:
        out.dump(rows)
    else:
        numbers = ("published", *LEFT, *HERE, "difference")
        cells = [(item["broker"], _ledger_cells(item, numbers)) for item in rows]
        table = out.listing(("queue", *numbers), numbers, cells)
        verdict = f"{len(rows)} queue(s), all balanced"
        if wrong:
            verdict = f"NOT balanced: {', '.join(map(plain, wrong))}"
        out.show(table, Text(verdict, "bold red" if wrong else "green"))
    found.complain()
    sys.exit(1 if wrong else 0)


def _ledger_cells(item: dict[str, Any], numbers: Sequence[str]) -> Sequence[Any]:
    amounts = {**item["ledger"], **item["counts"]}
    difference = out.count(item["difference"], "" if item["balanced"] else "bold red")
    return (
        item["queue"],
        *(out.count(amounts.get(name, 0)) for name in numbers[:-1]),
        difference,
    )


# -- doctor


@click.command()
@on_brokers
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@json_option
def doctor(target: Target, strict: bool, as_json: bool) -> None:
    """Look for what is wrong with brokers, rights, consumers and queues; name the remedy.

    Exits with 1 for an error, with --strict for a warning too; with 2 if a broker
    cannot be asked.

    \b
    Examples:
      reliq doctor --url reliq://localhost:6379/0
      reliq doctor --strict --json
    """
    found = target.gather(
        lambda inspector: [out.of_broker(inspector.broker, item) for item in inspector.doctor()]
    )
    rows = [item for items in found.require_some() for item in items]
    if as_json:
        out.dump(rows)
    else:
        worst_first = sorted(rows, key=lambda row: -list(_SEVERITIES).index(row["severity"]))
        columns = ("", "check", "what was found", "what to do")
        cells = [(item["broker"], _finding_cells(item)) for item in worst_first]
        table = out.listing(columns, (), cells)
        out.show(table)
    found.complain()
    bad = {"error", "warning"} if strict else {"error"}
    sys.exit(1 if any(item["severity"] in bad for item in rows) else 0)


def _finding_cells(item: dict[str, Any]) -> Sequence[Any]:
    severity = Text(item["severity"], _SEVERITIES[item["severity"]])
    return (severity, item["check"], item["message"], item["remedy"])
