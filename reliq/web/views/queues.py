"""One queue: its counts, its messages by place, who consumes from it and its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ...admin import STATES, Message
from ...errors import BrokerRefused, BrokerUnavailable, NotFound
from ..asked import PAGE
from ..series import RANGES
from .look import Pager, pager

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...admin import Consumer, QueueReport, Untold
    from ..series import Series
    from .look import Look

T = TypeVar("T")

CHANGEABLE = (
    "x-delivery-limit",
    "x-max-length",
    "x-message-ttl",
    "x-overflow",
    "x-partitions",
    "x-visibility-timeout",
)


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue as its page shows it."""

    queue: QueueReport
    state: str
    """Of the messages that are listed."""
    messages: list[Message]
    pager: Pager
    untold: list[Untold]
    consumers: list[Consumer] | None
    """None: they cannot be told now, since the node that knows them is lost."""
    settings: dict[str, Any] | None
    """Those that hold now; None as above."""
    now_ms: int
    range: str
    history: Series | None


def queue(look: Look) -> QueueView:
    """Return what is shown of a queue; raises ReliqError."""
    name = look.queue
    state = look.asked.text("state", "ready")
    if state not in STATES:
        state = "ready"
    found = _reported(look, name)
    shown = look.asked.text("range", "1h")
    if shown not in RANGES:
        shown = "1h"
    skip = look.asked.number("skip")
    messages, untold = look.inspector.peek_told(name, state, PAGE, skip)
    return QueueView(
        found,
        state,
        [hidden(look, message) for message in messages],
        pager(look.asked, messages, getattr(found, state)),
        untold,
        _if_told(lambda: [one for one in look.inspector.consumers() if name in one.queues]),
        _if_told(lambda: look.inspector.settings(name)),
        look.inspector.now_ms(),
        shown,
        _if_told(lambda: look.watch.history(look.inspector, name, RANGES[shown])),
    )


def _if_told(ask: Callable[[], T]) -> T | None:
    """Return what is asked for; None where this user may not, or a node of several is lost."""
    try:
        return ask()
    except (BrokerRefused, BrokerUnavailable):
        return None


def _reported(look: Look, name: str) -> QueueReport:
    """Return the queue's line of the overview; raises NotFound."""
    for _ in range(2):
        for found in look.watch.report(look.inspector).queues:
            if found.queue == name:
                return found
        look.watch.forget(name)  # it may have come a moment ago
    raise NotFound(f"no queue {name!r}")


def hidden(look: Look, message: Message) -> Message:
    """Return *message* without what is to be hidden in it."""
    redaction = look.redaction
    if not redaction:
        return message
    return replace(
        message,
        args=redaction.written(message.args),
        kwargs=redaction.written(message.kwargs),
        body=redaction.json(message.body),
    )
