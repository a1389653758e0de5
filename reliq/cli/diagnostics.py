"""Diagnostics: ``reliq consumers``, ``audit`` and ``doctor``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from reliq.admin.names import LEFT, STATES
from reliq.units import duration

from . import console as out
from .endings import Refused
from .options import all_option, on_brokers
from .spool import examine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reliq.admin import Inspector, Partial

    from .target import Target

_SEVERITIES = {"ok": "green", "info": "cyan", "warning": "yellow", "error": "bold red"}
_NUMBERS = ("published", *LEFT, *STATES)


# -- consumers


@click.command()
@all_option
@on_brokers
def consumers(target: Target, every: bool) -> None:
    """Show the consumers: worker, queues, held messages, last heartbeat.

    \b
    Examples:
      reliq consumers --url reliq://localhost:6379/0
      reliq consumers --json
    """
    kept = set[str]()

    def read(inspector: Inspector) -> Iterator[dict[str, Any]]:
        consumers, now_ms = inspector.consumers(), inspector.now_ms()
        if not target.as_json and not every:
            kept.update(inspector.durable_queues())
        for item in consumers:
            times = {"since_s": item.started_ms, "seen_s": item.seen_ms}
            ages = {name: max(now_ms - at_ms, 0) / 1000 for name, at_ms in times.items()}
            yield asdict(item) | ages

    def shown(rows: list[dict[str, Any]]) -> Sequence[Any]:
        table = out.listing(
            rows,
            {
                "consumer": lambda row: row["node"] or f"{row['host']}:{row['pid']}",
                "queues": lambda row: ", ".join(q for q in row["queues"] if every or q in kept),
                ">held": lambda row: out.count(row["held"]),
                ">heartbeat": lambda row: duration(row["seen_s"]) + " ago",
                "connected": lambda row: out.yes(row["connected"]),
                ">since": lambda row: duration(row["since_s"]),
                "pool": lambda row: row["pool"] or "-",
                "host": "host",
                ">pid": "pid",
                "version": "version",
                "id": "id",
            },
            optional=("since", "pool", "host", "pid", "version", "id"),
        )
        return table, f"{len(rows)} consumer(s)"

    target.answer(read, shown)


# -- audit


@click.command()
@click.option("--no-batches", is_flag=True, help="Check only queues, not batches.")
@on_brokers
def audit(target: Target, no_batches: bool) -> None:
    """Check that the ledger of each queue and the counters of each batch balance.

    A ledger accounts for every message ever published to its queue. The jobs of a batch are
    counted one by one, twice: a million jobs take about twenty seconds.

    Exits with 1 if a queue or a batch does not balance. Exits with 2 if a broker or a cluster
    node does not answer, because the result is then unknown.

    \b
    Examples:
      reliq audit --url reliq://localhost:6379/0
      reliq audit --no-batches
      reliq audit --json
    """

    def read(inspector: Inspector) -> Partial[Any]:
        audits: Partial[Any] = inspector.audit()
        if not no_batches:
            with out.progress("batches", None) as advance:
                audits += inspector.audit_batches(advance)
        return audits

    sys.exit(1 if _unbalanced(target.answer(read, _ledgers)) else 0)


def _unbalanced(rows: Sequence[dict[str, Any]]) -> list[str]:
    wrong = (row for row in rows if not row["balanced"])
    return [f"batch {row['batch']}" if "batch" in row else row["queue"] for row in wrong]


def _ledgers(rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
    queues = [row for row in rows if "queue" in row]
    batches = [row for row in rows if "batch" in row]
    wrong = _unbalanced(rows)
    checked = f"{len(queues)} queue(s)" + (f" and {len(batches)} batch(es)" if batches else "")
    verdict = f"NOT balanced: {', '.join(wrong)}" if wrong else f"{checked}, all balanced"
    of_queues: dict[str, Any] = {
        "queue": "queue",
        **{f">{name}": _amount(name) for name in _NUMBERS},
        ">difference": _difference("difference"),
    }
    of_batches: dict[str, Any] = {
        "batch": "batch",
        "name": "name",
        ">counters": lambda row: out.count(sum(row["counts"].values())),
        ">jobs": lambda row: out.count(sum(row["jobs"].values())),
        ">moving": lambda row: out.count(row["moving"]),
        ">failures": lambda row: out.count(row["failures"]),
        ">difference": _difference("difference"),
        ">failures wrong": _difference("failures_difference"),
    }
    return (
        out.listing(queues, of_queues, optional=_NUMBERS),
        *([out.listing(batches, of_batches)] if batches else []),
        out.cell(verdict, "bold red" if wrong else "green"),
    )


def _amount(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: out.count({**row["ledger"], **row["counts"]}.get(name, 0))


def _difference(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: out.count(row[name], "" if row["balanced"] else "bold red")


# -- doctor


@click.command()
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@on_brokers
def doctor(target: Target, strict: bool) -> None:
    """Find problems of brokers, permissions, consumers and queues, with their remedies.

    Exits with 1 for an error, and with --strict also for a warning. Exits with 2 if a broker
    does not answer.

    \b
    Examples:
      reliq doctor --url reliq://localhost:6379/0
      reliq doctor --strict --json
    """
    spools = [examine(url) for url in target.spools]

    def read(inspector: Inspector) -> Iterator[Any]:
        yield from inspector.doctor()
        while spools:  # once, with the findings of the first broker
            yield spools.pop()

    def worst_first(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        return sorted(rows, key=lambda row: -list(_SEVERITIES).index(row["severity"]))

    columns: dict[str, Any] = {
        "": lambda row: out.cell(row["severity"], _SEVERITIES[row["severity"]]),
        "check": "check",
        "finding": "message",
        "remedy": "remedy",
    }
    try:
        rows = target.answer(read, lambda rows: [out.listing(worst_first(rows), columns)])
    except Refused as exc:  # report the spools during an outage too
        raise Refused("\n".join([exc.message, *(spool.message for spool in spools)])) from exc
    bad = {"error", "warning"} if strict else {"error"}
    sys.exit(1 if any(item["severity"] in bad for item in rows) else 0)
