"""Groups of dead letters, counted some thousand at a time, and kept until they are counted anew."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from ..forks import OwnLock

if TYPE_CHECKING:
    from ..admin import DeadLetterGroups, Inspector

# What was counted to its end is counted anew after so long, or with so many more or fewer dead.
_YOUNG_S = 10.0
_LOOKS = 5000
_MOST_QUEUES = 200
# Errors that have an id in their text may make a group of each dead letter.
_MOST_GROUPS = 5000


@dataclass(slots=True)
class _Count:
    """The count of one queue."""

    shown: DeadLetterGroups | None = None
    """The last that came to its end, while another is under way."""
    going: DeadLetterGroups | None = None
    ended: float = 0.0


class Counting:
    """Counts the groups of the queues of one broker. Thread-safe: who comes meanwhile waits."""

    _lock = OwnLock()

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def groups(self, inspector: Inspector, queue: str, looks: int = _LOOKS) -> DeadLetterGroups:
        """Return the groups of *queue* as far as they are counted; a call counts *looks* more.

        Where there are thousands, the count ends with those that were found first.
        Raises NotFound.
        """
        with self._lock:
            if len(self._counts) > _MOST_QUEUES:
                self._counts.clear()
            count = self._counts.setdefault(queue, _Count())
            if count.going is None and count.shown and monotonic() - count.ended < _YOUNG_S:
                return count.shown
            count.going = inspector.dead_letter_groups(queue, count.going, looks)
            full = len(count.going.groups) >= _MOST_GROUPS
            if count.going.cursor is not None and not full:
                # One that grows as it is looked at, unless there is one that was whole.
                return count.shown or count.going
            count.shown, count.going, count.ended = count.going, None, monotonic()
            return count.shown

    def forget(self, queue: str) -> None:
        """Count a queue anew when it is looked at next: something was changed."""
        with self._lock:
            self._counts.pop(queue, None)
