"""One process that consumes, and the messages that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import NotFound
from .queues import hidden

if TYPE_CHECKING:
    from ...admin import Consumer, Message
    from .look import Look

# Of so many queues so many messages are looked at.
_MOST_QUEUES = 20
_LOOKED_AT = 500


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """One consumer of a broker."""

    consumer: Consumer
    messages: list[Message]
    """Those that it holds, as far as it was looked."""
    complete: bool
    """Whether all queues were looked through."""
    now_ms: int


def consumer(look: Look) -> ConsumerView:
    """Return what is shown of one consumer; raises ReliqError."""
    name = look.asked.text("id")
    found = next((one for one in look.inspector.consumers() if one.id == name), None)
    if found is None:
        raise NotFound(f"no consumer {name!r}: it has ended, and what it held was given back")
    messages: list[Message] = []
    complete = len(found.queues) <= _MOST_QUEUES
    for queue in found.queues[:_MOST_QUEUES]:
        held, untold = look.inspector.peek_told(queue, "unacked", _LOOKED_AT)
        complete = complete and len(held) < _LOOKED_AT and not untold
        messages += [message for message in held if _holds(name, message.consumer)]
    shown = [hidden(look, message) for message in messages]
    return ConsumerView(found, shown, complete, look.inspector.now_ms())


def _holds(name: str, holder: str | None) -> bool:
    """Whether *holder* is a connection of the consumer *name*."""
    return holder is not None and (holder == name or holder.startswith(f"{name}/"))
