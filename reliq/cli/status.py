"""``reliq status``: every queue, and the brokers they are on."""

from __future__ import annotations

import time
from dataclasses import asdict
from itertools import count as counting
from typing import TYPE_CHECKING, Any

import click

from reliq import admin
from reliq.units import duration, size

from . import console as out
from .options import Number, on_brokers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from reliq.admin import Inspector, Report

    from .target import Gathered, Target


def looks(target: Target, interval: float, most: int | None) -> Iterator[Gathered[Report]]:
    """Yield the reports of the brokers that answer, up to *most* times; None: without end.

    Each has the rates since the one before.
    """
    before: dict[str, Report] = {}

    def look(inspector: Inspector) -> Report:
        report = inspector.report(before.get(inspector.broker))
        before[inspector.broker] = report
        return report

    for number in counting(1):
        yield target.gather(look)
        if number == most:
            return
        time.sleep(interval)


def status_data(found: Gathered[Report]) -> dict[str, Any]:
    """Return what ``status --json`` prints."""
    brokers: list[dict[str, Any]] = [
        {**asdict(report.broker), "reachable": True, "error": None} for report in found.found
    ]
    for name, error in found.failures:
        unknown = admin.BrokerInfo(name, "", "", "", None, None, None, "", None)
        brokers.append({**asdict(unknown), "reachable": False, "error": str(error)})
    queues = [
        out.of_broker(report.broker.broker, queue)
        for report in found.found
        for queue in report.queues
    ]
    untold = [
        out.of_broker(report.broker.broker, item)
        for report in found.found
        for item in report.untold
    ]
    return {"brokers": brokers, "queues": queues, "untold": untold}


def status_tables(data: dict[str, Any]) -> Sequence[Table]:
    """Return the same as tables: the brokers, and their queues."""
    brokers = out.table(
        "broker", "reachable", "role", "version", "memory", "persistence", "clients", "up",
        right=("memory", "clients", "up"),
    )  # fmt: skip
    for item in data["brokers"]:
        memory = size(item["memory_bytes"])
        if item["memory_limit_bytes"]:
            memory += f" of {size(item['memory_limit_bytes'])}"
        weak = item["persistence"] == "none"
        brokers.add_row(
            out.cell(item["broker"]),
            out.cell("yes", "green") if item["reachable"] else out.cell("NO", "bold red"),
            out.cell(item["role"], "bold red" if _is_wrong(item["role"]) else ""),
            out.cell(f"{item['engine']} {item['version']}"),
            out.cell(memory),
            out.cell(item["persistence"], "yellow" if weak else ""),
            out.count(item["clients"]),
            out.cell(duration(item["uptime_s"])),
        )
    columns = ("queue", "ready", "delayed", "unacked", "dead", "consumers", "oldest", "in/s")
    queues = out.listing(
        (*columns, "out/s", "paused"),
        {*columns[1:], "out/s"},
        data["queues"],
        _queue_cells,
    )
    if not data["untold"]:
        return (brokers, queues)
    return (brokers, queues, untold_table(data["untold"]))


def untold_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the queues that no node tells of."""
    return out.listing(("node", "queues not told", "why"), (), rows, _untold_cells)


def _untold_cells(item: dict[str, Any]) -> Sequence[Any]:
    return (
        out.cell(item["node"] or "none", "bold red"),
        ", ".join(item["queues"]) or "not known",
        item["error"],
    )


def _is_wrong(role: str) -> bool:
    """Whether it takes no writes, or a node of it does not answer."""
    return role == "replica" or role.endswith(" answer")


def _queue_cells(item: dict[str, Any]) -> Sequence[Any]:
    deserted = item["ready"] and not item["consumers"]
    name: Any = item["queue"]
    if item["partitions_untold"]:
        note = f"{name} (without {item['partitions_untold']} of {item['partitions']} partitions)"
        name = out.cell(note, "yellow")
    return (
        name,
        out.count(item["ready"]),
        out.count(item["delayed"]),
        out.count(item["unacked"]),
        out.count(item["dead"], "red"),
        out.cell("0", "bold yellow") if deserted else out.count(item["consumers"]),
        duration(item["oldest_age_s"]),
        out.rate(item["rate_in"]),
        out.rate(item["rate_out"]),
        out.cell("PAUSED", "bold yellow") if item["paused"] else out.cell("no", "dim"),
    )


@click.command()
@click.option(
    "--interval",
    type=Number(0, 3600),
    default=1.0,
    show_default=True,
    help="Seconds over which the rates are measured; 0: no rates, at once.",
)
@on_brokers
def status(target: Target, interval: float, as_json: bool) -> None:
    """Show every queue, and the brokers they are on.

    Ready, delayed, unacked and dead messages, consumers, the age of the oldest ready
    message, messages published and acknowledged a second. Exits with 2 if a broker,
    or a node of a cluster, cannot be asked, after the others were shown.

    \b
    Examples:
      reliq status --url reliq://localhost:6379/0
      reliq status --interval 10
      reliq status --json --interval 0
    """
    for found in looks(target, interval, 2 if interval else 1):
        if not found.found:
            break
    out.answer(status_data(found), as_json, status_tables)
    found.complain(item for report in found.found for item in report.untold)
