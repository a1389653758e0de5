"""Turns: the choice of slots that a notifier waits for if it has fewer connections than slots."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .slots import Place, SlotMap

MOST = 8
"""The maximum number of connections for notifications."""
# A slot without a wait for this time gets no more turns.
_FORGOTTEN_S = 60.0


class Turns:
    """The slots of one notifier, and the present turn. Not thread-safe."""

    def __init__(self, map_: SlotMap, poll_interval_s: float) -> None:
        self._map = map_
        self._poll_interval_s = poll_interval_s
        self._known: dict[int, float] = {}  # slot -> the time of its last wait
        self._number = 0
        self.slots: frozenset[int] = frozenset()
        """The slots of the present turn."""
        self.ends_at = inf
        """When the turn ends (monotonic clock); inf if every slot has a connection."""

    def are_needed(self, slots: Iterable[int]) -> bool:
        """Record a wait for *slots*; return whether there are more slots than connections."""
        now = monotonic()
        self._known.update(dict.fromkeys(slots, now))
        if len(self._known) > MOST:
            self._known = {slot: at for slot, at in self._known.items() if now - at <= _FORGOTTEN_S}
        if len(self._known) > MOST:
            return True
        self.slots, self.ends_at = frozenset(self._known), inf
        return False

    def change(self, timeout_s: float) -> None:
        """Begin the next turn, of a wait that takes *timeout_s*."""
        self.slots = frozenset(self.next(sorted(self._known)))
        share = len(self.slots) / len(self._known)
        # A notification is received at the next turn of its slot: within a poll interval.
        all_turns_s = self._poll_interval_s / (1 - share)
        self.ends_at = monotonic() + max(min(timeout_s, all_turns_s) * share, 0.001)

    def next(self, slots: Sequence[int]) -> set[int]:
        """Return the slots of the next turn: an equal number for each node, if that fits.

        In this case, the same connections serve every turn. Each turn continues after the slots and
        nodes of the previous one, so every slot gets its turn.
        """
        self._number += 1
        by_place: dict[Place | None, list[int]] = {}
        for slot in slots:
            by_place.setdefault(self._map.place_of(slot), []).append(slot)
        places = list(by_place.values())
        size = MOST - MOST % len(places) or MOST
        found = set()
        for number in range(self._number * size, (self._number + 1) * size):
            round_, index = divmod(number, len(places))
            mine = places[index]
            found.add(mine[round_ % len(mine)])
        return found
