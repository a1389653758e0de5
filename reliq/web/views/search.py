"""A search for messages by the id or the name of their task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..asked import PAGE
from .queues import hidden

if TYPE_CHECKING:
    from ...admin import Message, Search
    from .look import Look


@dataclass(frozen=True, slots=True)
class SearchView:
    """What was found."""

    text: str
    search: Search | None
    """None: nothing was asked for."""
    messages: list[Message]
    now_ms: int


def search(look: Look) -> SearchView:
    """Return what a search has found so far; raises ReliqError."""
    asked = look.asked
    # What is no text, as half a character, is in no task and in no id.
    text = asked.text("text").strip().encode("utf-8", "replace").decode()
    if not text:
        return SearchView("", None, [], look.inspector.now_ms())
    found = look.inspector.find(
        text, look.queue or None, limit=PAGE, cursor=asked.text("cursor") or None
    )
    messages = [hidden(look, message) for message in found.found]
    return SearchView(text, found, messages, look.inspector.now_ms())
