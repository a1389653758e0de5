"""What waits for its time, in the order in which it becomes ready, and how much of it when."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..asked import PAGE
from .look import Pager
from .queues import hidden

if TYPE_CHECKING:
    from ...admin import Message
    from .look import Look

HORIZONS = {"10m": 600, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800}
_BARS = 60
# Of so many queues the next messages are looked at, and so many of all of them together.
_MOST_QUEUES = 50
_MOST = 1000


@dataclass(frozen=True, slots=True)
class DelayedView:
    """The time line of a broker."""

    total: int
    horizon: str
    bars: list[int]
    """How many of those that were looked at become ready in each part of the horizon."""
    looked: int
    """At so many it was looked."""
    complete: bool
    """Whether all that become ready within the horizon are among them."""
    messages: list[Message]
    pager: Pager
    queues: list[tuple[str, int]]
    now_ms: int


def delayed(look: Look) -> DelayedView:
    """Return what is shown of delayed messages; raises ReliqError."""
    horizon = look.asked.text("horizon", "1h")
    if horizon not in HORIZONS:
        horizon = "1h"
    chosen = look.queue
    queues = [
        (queue.queue, queue.delayed)
        for queue in look.watch.report(look.inspector).queues
        if queue.delayed and chosen in {"", queue.queue}
    ]
    queues.sort(key=lambda item: -item[1])
    now_ms = look.inspector.now_ms()
    end_ms = now_ms + HORIZONS[horizon] * 1000
    each = _MOST // max(len(queues[:_MOST_QUEUES]), 1)
    pages = [
        look.inspector.peek_told(name, "delayed", each)[0] for name, _ in queues[:_MOST_QUEUES]
    ]
    found = list(heapq.merge(*pages, key=lambda message: message.due_ms or 0))
    cut = [page[-1].due_ms or 0 for page in pages if len(page) == each]
    skip = look.asked.number("skip")
    shown = found[skip : skip + PAGE]
    return DelayedView(
        sum(count for _, count in queues),
        horizon,
        _bars(found, now_ms, end_ms),
        len(found),
        len(queues) <= _MOST_QUEUES and all(last >= end_ms for last in cut),
        [hidden(look, message) for message in shown],
        Pager(skip, len(shown), len(found), skip + PAGE < len(found)),
        queues,
        now_ms,
    )


def _bars(found: list[Message], now_ms: int, end_ms: int) -> list[int]:
    bars = [0] * _BARS
    for message in found:
        due_ms = max(message.due_ms or 0, now_ms)
        if due_ms < end_ms:
            bars[(due_ms - now_ms) * _BARS // (end_ms - now_ms)] += 1
    return bars
