"""The processes that consume from a broker, and what each of them holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...admin import Consumer
    from .look import Look


@dataclass(frozen=True, slots=True)
class ConsumersView:
    """All consumers of a broker."""

    consumers: list[Consumer]
    now_ms: int


def consumers(look: Look) -> ConsumersView:
    """Return what is shown of all consumers; raises ReliqError."""
    found = sorted(look.inspector.consumers(), key=lambda one: (one.connected, one.host, one.id))
    return ConsumersView(found, look.inspector.now_ms())
