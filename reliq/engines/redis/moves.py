"""Messages on their way to other queues and brokers, over Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...message.delivery_tag import is_of_job, new_tag, rank_of
from ...store.limits import MOVED_AT_ONCE, MOVES_KEPT_MS, chunks
from ...store.values import Move
from . import keys, scripts
from .base import StoreBase, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class RedisMoves(StoreBase):
    """What a store does with messages that go elsewhere."""

    def begin_move(self, queue: str, target: str, tags: Sequence[str]) -> tuple[int, list[Move]]:
        """Give numbers to dead letters that are to be stored elsewhere, or find them again."""
        names = scripts.MOVE.of(self._keys(queue))
        low_water, *flat = self._wire.execute(scripts.MOVE, names, (target, *tags[:MOVED_AT_ONCE]))
        moves = [
            Move(text_of(flat[i]), int(flat[i + 1]), flat[i + 2]) for i in range(0, len(flat), 3)
        ]
        return int(low_water), moves

    def move_out(self, queue: str, target: str) -> tuple[int, list[Move]]:
        """Take waiting messages out of *queue*, or go on with those taken out before."""
        names = scripts.MOVE_OUT.of(self._keys(queue))
        low_water, *flat = self._wire.execute(scripts.MOVE_OUT, names, (target, MOVED_AT_ONCE))
        moves = []
        for i in range(0, len(flat), 6):
            tag, number, envelope, delay_ms, ttl_ms, failed = flat[i : i + 6]
            moves.append(Move(text_of(tag), int(number), envelope, delay_ms, ttl_ms, failed))
        return int(low_water), moves

    def accept(self, queue: str, source: str, low_water: int, moves: Sequence[Move]) -> list[int]:
        """Store messages that come from *source*, each once; return what became of each."""
        publisher = keys.publisher(self._prefix, queue, f"move:{source}")
        names = scripts.ACCEPT.named(**self._keys(queue)._asdict(), publisher=publisher)
        args: list[Any] = [MOVES_KEPT_MS, low_water]
        for move in moves:
            rank, dead_letter = rank_of(move.tag), move.dead_letter
            tag = new_tag(rank, job=is_of_job(move.tag))
            args += tag, move.envelope, rank, move.number, move.delay_ms, move.ttl_ms
            args.append(move.failed)
            if dead_letter is None:
                args += 0, ""
            else:
                info = (
                    dead_letter.reason,
                    str(dead_letter.count),
                    dead_letter.consumer,
                    dead_letter.error,
                )
                args += dead_letter.died_ms, "|".join(info)
        outcomes: list[int] = self._wire.execute(scripts.ACCEPT, names, args)
        return outcomes

    def end_move(self, queue: str, tags: Sequence[str]) -> int:
        """Take out what is stored elsewhere now; return how many."""
        names = scripts.MOVED.of(self._keys(queue))
        return sum(self._wire.execute(scripts.MOVED, names, chunk) for chunk in chunks(tags))
