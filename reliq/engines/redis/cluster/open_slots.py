"""Open slots: those that a node says are on their way from it, or to it.

While slots are moved there is one at a time, for as long as its keys take. One that stays was left
behind when a move was broken off: then its queue cannot be used, as its keys are at two nodes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ....store.inspection import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# In the line of the node that is asked: [slot->-node it goes to] or [slot-<-node it comes from].
_OPEN = re.compile(r"\[(\d+)-([<>])-(\w+)\]")


class OpenSlot(NamedTuple):
    """One slot, as one of the two nodes knows it."""

    slot: int
    source: str
    target: str


def open_slots(reply: str) -> set[OpenSlot]:
    """Return the open slots that a node names in its reply to CLUSTER NODES."""
    names: dict[str, str] = {}
    mine: list[str] = []
    for line in reply.splitlines():
        fields = line.split()
        if len(fields) < 3:  # noqa: PLR2004 - id, address, flags
            continue
        names[fields[0]] = fields[1].partition("@")[0]
        if "myself" in fields[2].split(","):
            mine = fields
    found = set()
    for slot, way, other in _OPEN.findall(" ".join(mine)):
        ends = (names[mine[0]], names.get(other, other))
        source, target = ends if way == ">" else ends[::-1]
        found.add(OpenSlot(int(slot), source, target))
    return found


def judge_open_slots(before: Iterable[OpenSlot], now: Iterable[OpenSlot]) -> Iterator[Finding]:
    """Tell of the slots that are open; *before*: those that were, a second ago."""
    stayed = set(before)
    for slot, source, target in sorted(set(now)):
        where = f"slot {slot} is open, on its way from {source} to {target}"
        if (slot, source, target) in stayed:
            yield Finding(
                "slots",
                "error",
                f"{where}, and stays so: unless it is being moved now, the move was broken off, "
                "and whoever uses a queue in it waits until socket_timeout",
                f"redis-cli --cluster fix {source}, once nobody moves slots any more",
            )
        else:
            yield Finding("slots", "info", f"{where}: it is being moved")
