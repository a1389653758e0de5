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
# The time line is of so many queues, those with the most delayed messages.
_MOST_QUEUES = 50
# Of several queues so many of the next messages are listed together.
_LISTED = 200


@dataclass(frozen=True, slots=True)
class DelayedView:
    """The time line of a broker, or of one queue."""

    total: int
    horizon: str
    bars: list[int]
    """How many become ready in each part of the horizon."""
    later: int
    """How many become ready after it."""
    messages: list[Message]
    pager: Pager
    queues: list[tuple[str, int]]
    more: int
    """So many queues are left out."""
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
    names = [name for name, _ in queues[:_MOST_QUEUES]]
    every_s = HORIZONS[horizon] / _BARS
    each = [look.inspector.due(name, every_s, _BARS) for name in names]
    *bars, later = map(sum, zip(*each, strict=True)) if each else [0] * (_BARS + 1)
    total = sum(count for _, count in queues)
    skip = look.asked.number("skip")
    messages, listed = _listed(look, names, skip, total)
    return DelayedView(
        total,
        horizon,
        bars,
        later,
        [hidden(look, message) for message in messages],
        Pager(skip, len(messages), listed, skip + PAGE < listed),
        queues,
        len(queues) - len(names),
        look.inspector.now_ms(),
    )


def _listed(look: Look, names: list[str], skip: int, total: int) -> tuple[list[Message], int]:
    """Return a page of the next messages, and how many there are to page through."""
    if len(names) == 1:
        return look.inspector.peek_told(names[0], "delayed", PAGE, skip)[0], total
    end = min(skip + PAGE, _LISTED)
    pages = [look.inspector.peek_told(name, "delayed", end)[0] for name in names]
    found = heapq.merge(*pages, key=lambda message: message.due_ms or 0)
    return list(found)[skip:end], min(total, _LISTED)
