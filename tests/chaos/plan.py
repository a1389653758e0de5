"""The schedule of the nemesis, which a seed determines before the run starts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.chaos.model import Strike

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Span = tuple[float, float]


def plan(
    seed: int, kinds: Sequence[str], spans: Mapping[str, Span], duration_s: float, every_s: float
) -> list[Strike]:
    """Return strikes of all *kinds* over *duration_s*, one in every *every_s* on average.

    *spans* are the shortest and longest time until each kind is undone. The kinds are dealt like
    cards, so that all have the same frequency.
    """
    chance = random.Random(seed)
    strikes: list[Strike] = []
    deck: list[str] = []
    at = chance.uniform(0.5, 1.0) * every_s
    while at < duration_s:
        if not deck:
            deck = list(kinds)
            chance.shuffle(deck)
        kind = deck.pop()
        length = chance.uniform(*spans[kind])
        strikes.append(Strike(round(at, 3), kind, round(length, 3), chance.random()))
        at += chance.uniform(0.3, 1.7) * every_s
    return strikes
