"""Views of queues: the overview, one queue, delayed messages, and health."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from ...admin.names import LEFT, STATES
from ...errors import BrokerRefused, BrokerUnavailable, NotFound
from ...message.queue_arguments import is_durable
from ..asked import PAGE, Pager, if_reachable, pager
from ..charts import RANGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...admin import Message, QueueReport
    from ..asked import Asked, Look
    from ..charts import Series

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


def overview(look: Look, number: int, name: str) -> dict[str, Any]:
    """Return the data of one broker; raises ReliqError."""
    report = look.watch.report(look.inspector)
    kept = report.queues  # without temporary queues, unless all are requested
    if not look.asked.text("all"):
        kept = [queue for queue in kept if is_durable(queue.arguments)]
    queues = _chosen(kept, look.asked)
    skip = look.asked.number("skip") if look.asked.broker == number else 0
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
        "checkup": look.watch.checkup(),
        "sparks": _sparks(look, page),  # the last hour of the queues on this page
        "temporary": len(report.queues) - len(kept),  # deleted with their connection
    }


def _sparks(look: Look, queues: list[QueueReport]) -> dict[str, Series]:
    found = {}
    for queue in queues:
        try:
            found[queue.queue] = look.watch.history(look.inspector, queue.queue, _SPARK_MINUTES)
        except (NotFound, BrokerRefused):  # noqa: PERF203 - deleted meanwhile; no permission
            continue
        except BrokerUnavailable:  # an unreachable node: do not wait for it again
            break
    return found


def _chosen(kept: list[QueueReport], asked: Asked) -> list[QueueReport]:
    part = asked.text("name").casefold()
    queues = [queue for queue in kept if part in queue.queue.casefold()]
    sort = asked.text("sort")
    if sort not in SORTS or sort == "queue":
        return sorted(queues, key=lambda queue: queue.queue)
    return sorted(queues, key=lambda queue: (-(getattr(queue, sort) or 0), queue.queue))


def _totals(queues: list[QueueReport]) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        name: sum(getattr(queue, name) for queue in queues)
        for name in ("ready", "delayed", "unacked", "dead")
    }
    for name in ("rate_in", "rate_out"):
        known = [rate for queue in queues if (rate := getattr(queue, name)) is not None]
        found[name] = sum(known) if known else None
    return found


def queue(look: Look) -> dict[str, Any]:
    """Return the data of one queue; raises ReliqError."""
    name = look.queue
    state = _one_of(STATES, look.asked.text("state"), "ready")
    shown = _one_of(RANGES, look.asked.text("range"), "1h")
    found = _reported(look, name)
    messages = look.inspector.peek(name, state, PAGE, look.asked.number("skip"))
    return {
        "queue": found,
        "state": state,
        "messages": look.hidden(messages),
        "pager": pager(look.asked, messages, getattr(found, state)),
        "untold": messages.unreachable,
        "consumers": if_reachable(
            lambda: [one for one in look.inspector.consumers() if name in one.queues]
        ),
        "settings": if_reachable(lambda: look.inspector.settings(name)),
        "range": shown,
        "history": if_reachable(lambda: look.watch.history(look.inspector, name, RANGES[shown])),
    }


def _one_of(known: Iterable[str], asked: str, otherwise: str) -> str:
    return asked if asked in known else otherwise


def _reported(look: Look, name: str) -> QueueReport:
    for _ in range(2):
        for found in look.watch.report(look.inspector).queues:
            if found.queue == name:
                return found
        look.watch.forget(name)  # it may be new
    raise NotFound(f"no queue {name!r}")


def delayed(look: Look) -> dict[str, Any]:
    """Return the data of delayed messages; raises ReliqError."""
    horizon = _one_of(HORIZONS, look.asked.text("horizon"), "1h")
    queues = look.most("delayed")
    names = [name for name, _ in queues[:_MOST_QUEUES]]
    every_s = HORIZONS[horizon] / _BARS
    each = [look.inspector.due(name, every_s, _BARS) for name in names]
    *bars, later = map(sum, zip(*each, strict=True)) if each else [0] * (_BARS + 1)
    total = sum(count for _, count in queues)
    skip = look.asked.number("skip")
    messages, listed = _listed(look, names, skip, total)
    return {
        "total": total,
        "horizon": horizon,
        "bars": bars,
        "later": later,
        "messages": look.hidden(messages),
        "pager": Pager(skip, len(messages), listed, skip + PAGE < listed),
        "queues": queues,
        "more": len(queues) - len(names),  # queues that are not included
    }


def _listed(look: Look, names: list[str], skip: int, total: int) -> tuple[list[Message], int]:
    """Return a page of the messages due next, and the length of the list."""
    if len(names) == 1:
        return look.inspector.peek(names[0], "delayed", PAGE, skip), total
    end = min(skip + PAGE, _LISTED)
    pages = [look.inspector.peek(name, "delayed", end) for name in names]
    found = heapq.merge(*pages, key=lambda message: message.due_ms or 0)
    return list(found)[skip:end], min(total, _LISTED)


def health(look: Look) -> dict[str, Any]:
    """Return the doctor's findings and the audit, both made now, in seconds; raises ReliqError."""
    checkup, audit = look.watch.check_now(look.inspector), look.inspector.audit()
    return {
        "checkup": checkup,
        "findings": sorted(checkup.findings, key=lambda finding: _ORDER[finding.severity]),
        "audit": audit,
        "left": LEFT,
        "shown": sorted(audit, key=lambda result: result.balanced)[:_MOST_LEDGERS],
        "unbalanced": sum(not result.balanced for result in audit),
    }
