"""Warnings that others can cause as often as they like: each kind at most once in a while."""

from __future__ import annotations

import logging
from time import monotonic

logger = logging.getLogger("reliq")


class Seldom:
    """Writes at most one line in *every_s*, with how many were left out before it."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self._at, self._left_out = every_s, float("-inf"), 0

    def warn(self, text: str, *values: object) -> None:
        """Write a line, or leave it out."""
        if monotonic() - self._at < self._every_s:
            self._left_out += 1
            return
        logger.warning("web: %s; %d like it were left out before", text % values, self._left_out)
        self._at, self._left_out = monotonic(), 0
