"""``reliq status``, and its live form ``reliq top``."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from itertools import count as counting
from typing import TYPE_CHECKING, Any

import click

from reliq import admin
from reliq.message.queue_arguments import is_durable
from reliq.units import duration, size

from . import console as out
from .endings import Refused
from .options import all_option, interval_option, on_brokers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reliq.admin import Inspector, Report

    from .target import Gathered, Target


def readings(target: Target, interval: float, most: int | None) -> Iterator[Gathered[Report]]:
    """Yield the reports of the reachable brokers, *most* times; None: forever.

    Each report has the rates since the previous one.
    """
    before: dict[str, Report] = {}

    def read(inspector: Inspector) -> Report:
        report = inspector.report(before.get(inspector.broker))
        before[inspector.broker] = report
        return report

    for number in counting(1):
        yield target.gather(read)
        if number == most:
            return
        time.sleep(interval)


def status_data(gathered: Gathered[Report]) -> dict[str, Any]:
    """Return the output of ``status --json``."""
    brokers: list[dict[str, Any]] = [
        {**asdict(report.broker), "reachable": True, "error": None} for report in gathered.answers
    ]
    for name, error in gathered.failures:
        unknown = admin.BrokerInfo(name, "", "", "", None, None, None, "", None)
        brokers.append({**asdict(unknown), "reachable": False, "error": str(error)})
    rows: dict[str, list[dict[str, Any]]] = {
        name: [
            out.of_broker(report.broker.broker, item)
            for report in gathered.answers
            for item in getattr(report, name)
        ]
        for name in ("queues", "untold")
    }
    return {"brokers": brokers, **rows}


def status_tables(data: dict[str, Any], every: bool = False) -> Sequence[Any]:
    """Return tables of the brokers, their queues, and the unreadable queues.

    Temporary queues, such as those for replies and events, are only counted unless *every* is set.
    """
    shown = [row for row in data["queues"] if every or is_durable(row["arguments"])]
    temporary = len(data["queues"]) - len(shown)
    brokers = out.listing(
        data["brokers"],
        {
            "broker": "broker",
            "reachable": lambda row: out.yes(row["reachable"]),
            "role": lambda row: out.cell(
                # The server refuses writes, or a cluster node does not answer.
                row["role"],
                "bold red" if re.search("^replica$| answer$", row["role"]) else "",
            ),
            "version": lambda row: f"{row['engine']} {row['version']}",
            ">memory": lambda row: " of ".join(
                size(row[name])
                for name in ("memory_bytes", "memory_limit_bytes")
                if row[name] or name == "memory_bytes"
            ),
            "persistence": lambda row: out.cell(
                row["persistence"], "yellow" if row["persistence"] == "none" else ""
            ),
            ">clients": lambda row: out.count(row["clients"]),
            ">up": lambda row: duration(row["uptime_s"]),
        },
        optional=("version", "up", "clients"),
    )
    queues = out.listing(
        shown,
        {
            "queue": _queue_name,
            ">ready": lambda row: out.count(row["ready"]),
            ">delayed": lambda row: out.count(row["delayed"]),
            ">unacked": lambda row: out.count(row["unacked"]),
            ">dead": lambda row: out.count(row["dead"], "red"),
            ">consumers": _consumers,
            ">oldest": lambda row: duration(row["oldest_age_s"]),
            ">in/s": lambda row: out.rate(row["rate_in"]),
            ">out/s": lambda row: out.rate(row["rate_out"]),
            **({"limit": _limit} if any(map(_limit, shown)) else {}),
        },
        optional=("oldest", "in/s", "out/s"),
    )
    tables: list[Any] = [brokers, queues]
    if temporary:
        tables.append(out.cell(f"{temporary} temporary queue(s) not shown: use --all", "dim"))
    if not data["untold"]:
        return tables
    untold = out.listing(
        data["untold"],
        {
            "node": lambda row: out.cell(row["node"] or "none", "bold red"),
            "unreadable queues": lambda row: ", ".join(row["queues"]) or "unknown",
            "reason": "error",
        },
    )
    return [*tables, untold]


def _queue_name(row: dict[str, Any]) -> Any:
    name, lost = row["queue"], row["partitions_untold"]
    if lost:
        name = f"{name} (without {lost} of {row['partitions']} partitions)"
    if row["paused"]:
        name = f"{name} PAUSED"
    return out.cell(name, "yellow") if lost or row["paused"] else name


def _limit(row: dict[str, Any]) -> str:
    concurrency = row["concurrency"] and f"{row['concurrency']} in hand"
    text = row["limit_reached"] or ", ".join(filter(None, (concurrency, row["rate"])))
    older = row["limit_not_enforced"]
    return f"{text}, NOT ENFORCED by {older} consumer(s)" if older else text


def _consumers(row: dict[str, Any]) -> Any:
    deserted = row["ready"] and not row["consumers"]
    return out.cell("0", "bold yellow") if deserted else out.count(row["consumers"])


@click.command()
@interval_option(0, 3600, 1.0, "Seconds over which to measure rates; 0: no rates, no wait.")
@all_option
@on_brokers
def status(target: Target, interval: float, every: bool) -> None:
    """Show all brokers and queues.

    For each queue: ready, delayed, unacked and dead messages, consumers, age of the oldest ready
    message, and messages published and acknowledged per second. If a broker or a cluster node
    does not answer, the command shows the others and exits with 2.

    \b
    Examples:
      reliq status --url reliq://localhost:6379/0
      reliq status --interval 10
      reliq status --json --interval 0
    """
    for gathered in readings(target, interval, 2 if interval else 1):
        if not gathered.answers:
            break
    out.answer(status_data(gathered), target.as_json, lambda data: status_tables(data, every))
    gathered.complain(item for report in gathered.answers for item in report.untold)


def screen(data: dict[str, Any], interval: float, every: bool = False) -> Any:
    """Return one measurement as a screen for the terminal."""
    unreachable = [item["error"] for item in data["brokers"] if not item["reachable"]]
    head = out.Text(
        f"reliq top   {time.strftime('%H:%M:%S')}   every {interval:g} s   Ctrl-C to exit"
    )
    return out.Group(
        head, *status_tables(data, every), *(out.Text(error, "bold red") for error in unreachable)
    )


@click.command()
@interval_option(0.1, 3600, 2.0, "Seconds between measurements.")
@click.option("--count", type=click.IntRange(1), help="Exit after this many measurements.")
@all_option
@on_brokers
def top(target: Target, interval: float, count: int | None, every: bool) -> None:
    """Show the status live, until Ctrl-C.

    An unreachable broker is marked and queried again. With --json, each measurement is a line.

    \b
    Examples:
      reliq top
      reliq top --interval 0.5
      reliq top --json --count 3 --interval 10
    """
    screens = map(status_data, readings(target, interval, count))
    try:
        if target.as_json:
            for data in screens:
                click.echo(json.dumps(data, default=str))
            return
        console = out.Console(highlight=False)
        if not console.is_terminal:
            raise Refused("top needs a terminal: use --json here, or reliq status")
        with out.Live(console=console, screen=True, auto_refresh=False) as live:
            for data in screens:
                live.update(screen(data, interval, every), refresh=True)
    except KeyboardInterrupt:
        return  # the usual end of top
