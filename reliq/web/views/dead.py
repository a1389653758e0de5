"""Dead letters grouped by what they died of, and those of one group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..asked import PAGE
from .queues import hidden

if TYPE_CHECKING:
    from ...admin import DeadLetterGroup, DeadLetterGroups, Message, Search
    from .look import Look

# The groups of so many queues are counted for one page, those with the most dead letters first.
_MOST_QUEUES = 20
_LOOKS = 5000
_ROWS = 200


@dataclass(frozen=True, slots=True)
class DeadView:
    """The dead letters of a broker, or of one queue."""

    total: int
    queues: list[tuple[str, int]]
    """Which have how many, those with the most first."""
    groups: list[tuple[str, DeadLetterGroup]]
    """Of which queue; the largest first."""
    counted: int
    countable: int
    """So many were counted of so many."""
    more: int
    """So many queues were not looked into."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group, and a page of its dead letters."""

    queue: str
    fingerprint: str
    group: DeadLetterGroup | None
    """What is known of all; None: none was counted so far."""
    counted: DeadLetterGroups
    found: Search
    messages: list[Message]
    now_ms: int


def dead(look: Look) -> DeadView:
    """Return what is shown of dead letters; raises ReliqError."""
    chosen = look.queue
    there = [
        (queue.queue, queue.dead)
        for queue in look.watch.report(look.inspector).queues
        if queue.dead and chosen in {"", queue.queue}
    ]
    there.sort(key=lambda item: -item[1])
    looked = there[:_MOST_QUEUES]
    looks = max(_LOOKS // max(len(looked), 1), 500)
    counts = [look.watch.counting.groups(look.inspector, name, looks) for name, _ in looked]
    groups = [(count.queue, group) for count in counts for group in count.groups]
    groups.sort(key=lambda item: (-item[1].count, item[1].fingerprint))
    return DeadView(
        sum(count for _, count in there),
        there,
        groups[:_ROWS],
        sum(count.counted for count in counts),
        sum(count.total for count in counts),
        len(there) - len(looked),
        look.inspector.now_ms(),
    )


def group(look: Look) -> GroupView:
    """Return what is shown of one group; raises ReliqError."""
    name, fingerprint = look.queue, look.asked.text("group")
    counted = look.watch.counting.groups(look.inspector, name)
    known = next((one for one in counted.groups if one.fingerprint == fingerprint), None)
    found = look.inspector.dead_letters_of_group(
        name, fingerprint, limit=PAGE, cursor=look.asked.text("cursor") or None
    )
    messages = [hidden(look, message) for message in found.found]
    now_ms = look.inspector.now_ms()
    return GroupView(name, fingerprint, known, counted, found, messages, now_ms)
