"""Turns: which slots a notifier waits for, where there are more than it has connections."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .slots import Place, SlotMap

MOST = 8
"""How many connections there are for notifications at most."""
# A slot that was not waited for in so long has no turn any more.
_FORGOTTEN_S = 60.0


class Turns:
    """The slots of one notifier, and whose turn it is. Of one thread."""

    def __init__(self, map_: SlotMap, poll_interval_s: float) -> None:
        self._map = map_
        self._poll_interval_s = poll_interval_s
        self._known: dict[int, float] = {}  # when each slot was waited for last
        self._number = 0
        self.slots: frozenset[int] = frozenset()
        """Those whose turn it is."""
        self.ends_at = inf
        """When the turn ends (monotonic clock); inf where all have a connection."""

    def are_needed(self, slots: Iterable[int]) -> bool:
        """Note that *slots* are waited for; whether there are more than connections."""
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
        # What comes while a slot has no turn is heard when it has: within a poll interval.
        all_turns_s = self._poll_interval_s / (1 - share)
        self.ends_at = monotonic() + max(min(timeout_s, all_turns_s) * share, 0.001)

    def next(self, slots: Sequence[int]) -> set[int]:
        """Return one slot after the other of each node: as many of each, where that fits.

        Then the connections serve every turn. Turn after turn goes on where the last one has
        ended, with the nodes as with the slots of each: so all have their turns.
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
