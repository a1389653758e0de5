"""The rules for dead letters: replay, removal, and moves that may stop at any point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from reliq.transfer.numbered import outgoing
from tests.model.stepping import OTHER, QUEUE, Stepping, consumers, picked_of, picks

if TYPE_CHECKING:
    from reliq.values.values import Move

TARGETS = (f"queue:{OTHER}", "elsewhere")


class DeadLetters(Stepping):
    """A mover that was cut off may continue at any later time, and so may another mover."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[int, list[Move]]] = []
        """The moves that movers have begun, oldest first."""

    @precondition(lambda self: self.oracle.at("dead"))
    @rule(number=consumers, picked=picks)
    def replay(self, number: int, picked: list[int]) -> None:
        """Replay dead letters; the given tags also name other messages."""
        tags = picked_of(self._near_dead(), picked)
        self.step(
            f"replay {tags}",
            lambda: self.store(number).replay(QUEUE, tags),
            lambda _: self.oracle.replay(tags),
        )

    @precondition(lambda self: self.oracle.at("dead"))
    @rule(number=consumers, picked=picks)
    def purge_dead(self, number: int, picked: list[int]) -> None:
        """Remove dead letters; the given tags also name other messages."""
        tags = picked_of(self._near_dead(), picked[:2])
        self.step(
            f"purge dead {tags}",
            lambda: self.store(number).purge_dead(QUEUE, tags),
            lambda _: self.oracle.purge_dead(tags),
        )

    @precondition(lambda self: self.oracle.at("dead"))
    @rule(number=consumers, to=st.sampled_from((*TARGETS[:1] * 4, TARGETS[1])), picked=picks)
    def begin_move(self, number: int, to: str, picked: list[int]) -> None:
        """Begin to move dead letters, or find a begun move."""
        tags = picked_of(self._near_dead(), picked)
        told: dict[str, int] = {}
        lows: list[int] = []

        def begin() -> Any:
            low, moves = self.store(number).begin_move(QUEUE, to, tags)
            lows.append(low)
            told.update((move.tag, move.number) for move in moves)
            if moves and to == TARGETS[0]:
                self.begun.append((low, moves))
            return [tuple(move[:3]) for move in moves]

        self.step(f"move {tags} to {to}", begin, lambda _: self.oracle.begin_move(to, tags, told))
        unsettled = [number for number, _ in self.oracle.moving.values()]
        assert lows[0] <= min(unsettled, default=lows[0]), (lows, unsettled)

    @precondition(lambda self: self.begun)
    @rule(number=consumers, picked=picks, ended=st.sampled_from((True, True, False)))
    def go_on_moving(self, number: int, picked: list[int], ended: bool) -> None:
        """Store a begun move in the other queue, however old it is; perhaps end the move."""
        low, moves = self.begun[-1 - picked[0] % len(self.begun)]
        store = self.store(number)
        sent = [outgoing(QUEUE, move, low, move.envelope, OTHER) for move in moves]
        items = [item.publication(OTHER, store) for item in sent]
        self.step(
            f"store moves {[move.number for move in moves]}, low {low}",
            lambda: store.publish(items),
            lambda now: self.other.publish(items, b"", now),
            OTHER,
        )
        if ended:
            tags = [move.tag for move in moves]
            self.step(
                f"end moves {tags}",
                lambda: self.store(number).end_move(QUEUE, tags),
                lambda _: self.oracle.end_move(tags),
            )

    def _near_dead(self) -> list[str]:
        """Return the dead letters, and one tag that may be another message."""
        return [*self.tags[-1:], *(m.tag for m in self.oracle.at("dead"))]
