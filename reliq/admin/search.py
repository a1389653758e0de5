"""Searching queues for messages, by task, by id or by tag: bounded, and honest about how far."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..message.queue_names import queue_of
from .views import of_stored
from .walking import cursor_of, gone_on, ground, look, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..store.inspection import Looked
    from ..store.protocol import Store
    from .views import Message
    from .walking import Cursor, Ground

_TAG = re.compile(r"[0-9a-f]{30}j?")


@dataclass(frozen=True, slots=True)
class Search:
    """What a search has found so far, and how far it has come."""

    found: list[Message]
    """In this call; in the order of the queues' names, ready, delayed, unacked, dead."""
    looked: int
    """At so many messages it has looked, in this call and those before."""
    total: int
    """Of so many, as they are now."""
    cursor: str | None = field(repr=False)
    """What the next call is given to go on; None: there is no more."""


def is_tag(text: str) -> bool:
    """Whether *text* is a delivery tag."""
    return _TAG.fullmatch(text) is not None


def by_tag(store: Store, names: Sequence[str], tag: str) -> Search:
    """Look a tag up in each of these queues: there is nothing to search."""
    found, now_ms = [], store.now_ms()
    for name in names:
        located = store.reads.look_up(name, tag)
        if located is not None:
            found.append(of_stored(queue_of(name), located.place, located.stored, now_ms))
    total = ground(store, names).total
    return Search(found, total, total, None)


def search(
    store: Store,
    through: Ground,
    fits: Callable[[Message], bool],
    limit: int,
    looks: int,
    cursor: str | None,
    *,
    contains: str = "",
) -> Search:
    """Return up to *limit* messages that fit, among the next *looks*.

    contains: text that their envelopes have; the broker passes over all others.
    """
    start = None if cursor is None else cursor_of(cursor)
    now_ms = store.now_ms()

    def fitting(begun: Cursor, looked: Looked) -> list[tuple[int, Message]]:
        queue = queue_of(begun.name)
        messages = (of_stored(queue, begun.place, item, now_ms) for item in looked.items)
        numbered = zip(looked.numbers, messages, strict=True)
        return [(number, message) for number, message in numbered if fits(message)]

    found: list[Message] = []
    after: Cursor | None = None
    for step in walk(store, through, start, looks, contains=contains):
        after = step.after
        messages, room = fitting(step.begun, step.found), limit - len(found)
        if len(messages) > room:  # a step that ends with the last of them: the next call goes on
            shorter = look(store, step.begun, messages[room - 1][0], contains)
            messages = fitting(step.begun, shorter)[:room]
            after = gone_on(step.begun, shorter)
        found += [message for _, message in messages]
        if len(found) >= limit:
            break
    if after is None:
        return Search(found, through.total, through.total, None)
    return Search(found, after.looked, max(through.total, after.looked), after.text())
