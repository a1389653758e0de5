"""Dead letters over Redis, and messages on their way to other queues and brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...message.delivery_tag import new_tag, rank_of
from ...store import unreadable
from ...store.batches import batches
from ...store.inspection import DeadLetter
from ...store.limits import MOVED_AT_ONCE, MOVES_KEPT_MS
from ...store.unreadable import left_out
from ...store.values import Lease, Move
from . import keys, scripts
from .base import StoreBase, flat_of, text_of, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .wire import Command


_INFO_FIELDS = 4


class RedisMoves(StoreBase):
    """What a store does with messages that go elsewhere."""

    def dead_letter(
        self, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        """Give up on messages; return the tags that were refused."""
        names = scripts.DEAD_LETTER.of(self._keys(queue))
        limit = self.options.dead_letter_max
        refused: list[str] = []
        for batch in batches(leases):
            args = (reason, error, limit, *flat_of(batch))
            refused += texts(self._wire.execute(scripts.DEAD_LETTER, names, args))
        return refused

    def replay(self, queue: str, tags: Sequence[str]) -> list[str]:
        """Put dead letters back into *queue*, uncounted; return the tags that were."""
        names = scripts.REPLAY.of(self._keys(queue))
        replayed: list[str] = []
        for batch in batches(tags):
            replayed += texts(self._wire.execute(scripts.REPLAY, names, batch))
        return replayed

    def purge_dead(self, queue: str, tags: Sequence[str]) -> int:
        """Remove dead letters for good; return how many."""
        names = scripts.PURGE_DEAD.of(self._keys(queue))
        return sum(self._wire.execute(scripts.PURGE_DEAD, names, batch) for batch in batches(tags))

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
            args += new_tag(rank), move.envelope, rank, move.number, move.delay_ms, move.ttl_ms
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
        return sum(self._wire.execute(scripts.MOVED, names, batch) for batch in batches(tags))

    def dead_letters(
        self, queue: str, limit: int, from_ms: int = 0, envelopes: bool = False
    ) -> list[DeadLetter]:
        """Return up to *limit* that died at *from_ms* or later, oldest first."""
        k = self._keys(queue)
        reply = self._wire.call(
            ("ZRANGEBYSCORE", k.dead, from_ms, "+inf", "WITHSCORES", "LIMIT", 0, limit)
        )
        tags = texts(reply[::2])
        if not tags:
            return []
        asked: list[tuple[Command, None]] = [(("HMGET", k.dead_info, *tags), None)]
        if envelopes:
            asked.append((("HMGET", k.messages, *tags), None))
        infos, *stored = self._wire.exchange(asked)
        dead_letters = []
        for i, (tag, died, info) in enumerate(zip(tags, reply[1::2], infos, strict=True)):
            if info is None:  # it left between the two looks
                continue
            text = info.decode("utf-8", "replace")
            fields = text.split("|", 3)
            if len(fields) != _INFO_FIELDS:
                left_out(self.broker, f"records of dead letters of {queue!r}", [tag])
                fields = ["unknown", "0", "", text]
            reason, count, consumer, error = fields
            envelope = stored[0][i] if envelopes else None
            counted = unreadable.number(count)
            dead_letters.append(
                DeadLetter(tag, unreadable.number(died), reason, counted, consumer, error, envelope)
            )
        return dead_letters
