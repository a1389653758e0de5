"""One queue: its counts, its messages by place, who consumes from it and its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...admin import STATES, Message
from ...errors import BrokerRefused, NotFound
from ..asked import PAGE
from ..series import RANGES
from .look import Pager, pager

if TYPE_CHECKING:
    from ...admin import Consumer, QueueReport, Untold
    from ..series import Series
    from .look import Look

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
    consumers: list[Consumer]
    settings: dict[str, Any]
    """Those that hold now."""
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
    consumers = [one for one in look.inspector.consumers() if name in one.queues]
    return QueueView(
        found,
        state,
        [hidden(look, message) for message in messages],
        pager(look.asked, messages, getattr(found, state)),
        untold,
        consumers,
        look.inspector.settings(name),
        look.inspector.now_ms(),
        shown,
        _history(look, name, RANGES[shown]),
    )


def _history(look: Look, name: str, minutes: int) -> Series | None:
    try:
        return look.watch.history(look.inspector, name, minutes)
    except (NotFound, BrokerRefused):  # a partition of a queue; not for this user
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
