"""Views of queues: the overview, one queue, delayed messages, and health."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from ...admin.names import LEFT, STATES
from ...errors import BrokerRefused, BrokerUnavailable, NotFound
from ...message.queue_arguments import is_durable
from ..charts import RANGES
from ..page_request import PAGE, Pager, if_reachable, pager

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...admin import Message, QueueReport
    from ..charts import Series
    from ..page_request import PageRequest, Source

SORTS = ("queue", "ready", "delayed", "unacked", "dead", "consumers", "oldest_age_s")
_SIZE = 2 * PAGE
_SPARK_MINUTES = 60

HORIZONS = {"10m": 600, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800}
_BARS = 60
# Queues on the timeline: those with the most delayed messages.
_MOST_QUEUES = 50
# Messages in the common list of several queues: those due next.
_LISTED = 200

_MOST_LEDGERS = 200
_ORDER = {"error": 0, "warning": 1, "info": 2, "ok": 3}


def overview(source: Source, number: int, name: str) -> dict[str, Any]:
    """Return the data of one broker; raises ReliqError."""
    report = source.watch.report(source.inspector)
    kept = report.queues  # without temporary queues, unless all are requested
    if not source.request.text("all"):
        kept = [queue for queue in kept if is_durable(queue.arguments)]
    queues = _chosen(kept, source.request)
    skip = source.request.number("skip") if source.request.broker == number else 0
    page = queues[skip : skip + _SIZE]
    return {
        "number": number,
        "name": name,
        "error": "",
        "info": report.broker,
        "totals": _totals(kept),
        "queues": page,
        "pager": Pager(skip, len(page), len(queues), skip + _SIZE < len(queues), _SIZE),
        "untold": report.untold,
        "checkup": source.watch.checkup(),
        "sparks": _sparks(source, page),  # the last hour of the queues on this page
        "temporary": len(report.queues) - len(kept),  # deleted with their connection
    }


def _sparks(source: Source, queues: list[QueueReport]) -> dict[str, Series]:
    series = {}
    for queue in queues:
        try:
            name = queue.queue
            series[name] = source.watch.history(source.inspector, name, _SPARK_MINUTES)
        except (NotFound, BrokerRefused):  # noqa: PERF203 - deleted meanwhile; no permission
            continue
        except BrokerUnavailable:  # an unreachable node: do not wait for it again
            break
    return series


def _chosen(kept: list[QueueReport], request: PageRequest) -> list[QueueReport]:
    part = request.text("name").casefold()
    queues = [queue for queue in kept if part in queue.queue.casefold()]
    sort = request.text("sort")
    if sort not in SORTS or sort == "queue":
        return sorted(queues, key=lambda queue: queue.queue)
    return sorted(queues, key=lambda queue: (-(getattr(queue, sort) or 0), queue.queue))


def _totals(queues: list[QueueReport]) -> dict[str, float | None]:
    totals: dict[str, float | None] = {
        name: sum(getattr(queue, name) for queue in queues)
        for name in ("ready", "delayed", "unacked", "dead")
    }
    for name in ("rate_in", "rate_out"):
        known = [rate for queue in queues if (rate := getattr(queue, name)) is not None]
        totals[name] = sum(known) if known else None
    return totals


def queue(source: Source) -> dict[str, Any]:
    """Return the data of one queue; raises ReliqError."""
    name, watch = source.queue, source.watch
    state = _one_of(STATES, source.request.text("state"), "ready")
    shown = _one_of(RANGES, source.request.text("range"), "1h")
    report = _reported(source, name)
    messages = source.inspector.peek(name, state, PAGE, source.request.number("skip"))
    return {
        "queue": report,
        "state": state,
        "messages": source.hidden(messages),
        "pager": pager(source.request, messages, getattr(report, state)),
        "untold": messages.unreachable,
        "consumers": if_reachable(
            lambda: [item for item in source.inspector.consumers() if name in item.queues]
        ),
        "settings": if_reachable(lambda: source.inspector.settings(name)),
        "range": shown,
        "history": if_reachable(lambda: watch.history(source.inspector, name, RANGES[shown])),
    }


def _one_of(known: Iterable[str], given: str, otherwise: str) -> str:
    return given if given in known else otherwise


def _reported(source: Source, name: str) -> QueueReport:
    for _ in range(2):
        for report in source.watch.report(source.inspector).queues:
            if report.queue == name:
                return report
        source.watch.forget(name)  # it may be new
    raise NotFound(f"no queue {name!r}")


def delayed(source: Source) -> dict[str, Any]:
    """Return the data of delayed messages; raises ReliqError."""
    horizon = _one_of(HORIZONS, source.request.text("horizon"), "1h")
    queues = source.most("delayed")
    names = [name for name, _ in queues[:_MOST_QUEUES]]
    every_s = HORIZONS[horizon] / _BARS
    each = [source.inspector.due(name, every_s, _BARS) for name in names]
    *bars, later = map(sum, zip(*each, strict=True)) if each else [0] * (_BARS + 1)
    total = sum(count for _, count in queues)
    skip = source.request.number("skip")
    messages, listed = _listed(source, names, skip, total)
    return {
        "total": total,
        "horizon": horizon,
        "bars": bars,
        "later": later,
        "messages": source.hidden(messages),
        "pager": Pager(skip, len(messages), listed, skip + PAGE < listed),
        "queues": queues,
        "more": len(queues) - len(names),  # queues that are not included
    }


def _listed(source: Source, names: list[str], skip: int, total: int) -> tuple[list[Message], int]:
    """Return a page of the messages due next, and the length of the list."""
    if len(names) == 1:
        return source.inspector.peek(names[0], "delayed", PAGE, skip), total
    end = min(skip + PAGE, _LISTED)
    pages = [source.inspector.peek(name, "delayed", end) for name in names]
    messages = heapq.merge(*pages, key=lambda message: message.due_ms or 0)
    return list(messages)[skip:end], min(total, _LISTED)


def health(source: Source) -> dict[str, Any]:
    """Return the doctor's findings and the audit, both made now, in seconds; raises ReliqError."""
    checkup, audit = source.watch.check_now(source.inspector), source.inspector.audit()
    return {
        "checkup": checkup,
        "findings": sorted(checkup.findings, key=lambda finding: _ORDER[finding.severity]),
        "audit": audit,
        "left": LEFT,
        "shown": sorted(audit, key=lambda result: result.balanced)[:_MOST_LEDGERS],
        "unbalanced": sum(not result.balanced for result in audit),
    }
