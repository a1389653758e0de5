"""The processes that consume from a broker, and what each of them holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..asked import PAGE
from .look import Pager, pager

if TYPE_CHECKING:
    from ...admin import Consumer
    from .look import Look


@dataclass(frozen=True, slots=True)
class ConsumersView:
    """Some of the consumers of a broker: those that are gone first."""

    consumers: list[Consumer]
    now_ms: int
    total: int
    pager: Pager


def consumers(look: Look) -> ConsumersView:
    """Return what is shown of the consumers; raises ReliqError."""
    found = sorted(look.inspector.consumers(), key=lambda one: (one.connected, one.host, one.id))
    skip = look.asked.number("skip")
    shown = found[skip : skip + PAGE]
    page = pager(look.asked, shown, len(found))
    return ConsumersView(shown, look.inspector.now_ms(), len(found), page)
