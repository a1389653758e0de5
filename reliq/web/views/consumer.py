"""One process that consumes, and the messages that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import NotFound
from ..asked import PAGE
from .queues import hidden

if TYPE_CHECKING:
    from ...admin import Consumer, Message, Search
    from .look import Look


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """One consumer of a broker."""

    consumer: Consumer
    held: Search
    messages: list[Message]
    """A page of those that it holds."""
    now_ms: int


def consumer(look: Look) -> ConsumerView:
    """Return what is shown of one consumer; raises ReliqError."""
    asked = look.asked
    name = asked.text("id")
    found = next((one for one in look.inspector.consumers() if one.id == name), None)
    if found is None:
        raise NotFound(
            f"no consumer {name!r}: it has ended, and what it held returns when somebody consumes"
        )
    held = look.inspector.held_by(name, limit=PAGE, cursor=asked.text("cursor") or None)
    shown = [hidden(look, message) for message in held.found]
    return ConsumerView(found, held, shown, look.inspector.now_ms())
