"""Numbers of publishes that may be tried again: which of them are known, in few bytes."""

from __future__ import annotations

from bisect import bisect_right


class SequenceSet:
    """A set of whole numbers as ranges; its text is ``"4-8,10"``."""

    def __init__(self, text: str = "") -> None:
        self._ranges: list[list[int]] = []
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            self._ranges.append([int(first), int(last or first)])

    def __str__(self) -> str:
        """Return the text that makes an equal one."""
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self._ranges)

    def __contains__(self, number: int) -> bool:
        """Whether *number* is known."""
        i = bisect_right(self._ranges, number, key=lambda item: item[0])
        return i > 0 and number <= self._ranges[i - 1][1]

    def add(self, number: int) -> bool:
        """Note *number*; False when it was known."""
        ranges = self._ranges
        i = bisect_right(ranges, number, key=lambda item: item[0])
        if i and number <= ranges[i - 1][1]:
            return False
        joins_left = i > 0 and ranges[i - 1][1] == number - 1
        joins_right = i < len(ranges) and ranges[i][0] == number + 1
        if joins_left and joins_right:
            ranges[i - 1][1] = ranges.pop(i)[1]
        elif joins_left:
            ranges[i - 1][1] = number
        elif joins_right:
            ranges[i][0] = number
        else:
            ranges.insert(i, [number, number])
        return True

    def forget_below(self, low_water: int) -> None:
        """Forget every number below *low_water*."""
        self._ranges = [[max(a, low_water), b] for a, b in self._ranges if b >= low_water]
