"""Dead letters over Redis, the events of jobs, and messages that move to other queues."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..batches.jobs import JobEvent
from ..lua import keys, scripts
from ..message.delivery_tag import rank_of, tag_like
from ..values.limits import MOVED_AT_ONCE, chunks
from ..values.unreadable import number
from ..values.values import Move
from .base import StoreBase, flat_of, text_of, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..client.stream import Reply
    from ..values.values import Lease


# Written by keep_events in the scripts. The number is the length of the error in bytes.
_EVENT = re.compile(rb"\d+\|(dead|gone|waits)\|([^|]*)\|([^|]*)\|(\d{1,9})\|", re.ASCII)


class RedisDeadLetters(StoreBase):
    """Messages that were dead-lettered or are moved, and events of jobs."""

    def dead_letter(
        self, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        """Dead-letter messages; return the refused tags."""
        limit = self.options.dead_letter_max
        refused: list[str] = []
        for chunk in chunks(leases):
            args = (reason, error, limit, *flat_of(chunk))
            refused += texts(self._run(scripts.DEAD_LETTER, queue, args))
        return refused

    def replay(self, queue: str, tags: Sequence[str]) -> list[str]:
        """Make dead letters ready in *queue* again, uncounted; return the replayed tags."""
        replayed: list[str] = []
        for chunk in chunks(tags):
            replayed += texts(self._run(scripts.REPLAY, queue, chunk))
        return replayed

    def purge_dead(self, queue: str, tags: Sequence[str]) -> int:
        """Remove dead letters for good; return how many."""
        return sum(self._run(scripts.PURGE_DEAD, queue, batch) for batch in chunks(tags))

    def job_events(self, queue: str, limit: int, after: int = 0) -> list[JobEvent]:
        """Return up to *limit* events of jobs of *queue* with numbers above *after*, in order.

        Each step that dead-letters, removes or replays a job's message records an event, except
        the deletion of the whole queue. The tag marks a message as a job's.
        """
        key = self._keys(queue).job_events
        flat = self._wire.call(
            ("ZRANGEBYSCORE", key, f"({after}", "+inf", "WITHSCORES", "LIMIT", 0, limit)
        )
        return [_event(event, number(at)) for event, at in zip(flat[::2], flat[1::2], strict=True)]

    def forget_job_events(self, queue: str, numbers: Sequence[int]) -> None:
        """Remove events that were reported to their batches. Repeating it is harmless."""
        key = self._keys(queue).job_events
        self._wire.call_all(*(("ZREMRANGEBYSCORE", key, number, number) for number in numbers))

    # -- moves

    def begin_move(self, queue: str, target: str, tags: Sequence[str]) -> tuple[int, list[Move]]:
        """Give numbers to dead letters that are to be stored elsewhere, or return the known ones.

        *target* names the destination; dead letters on their way to another target are left out.
        Returns (low, moves): numbers below low are settled. Takes up to 100 tags.
        """
        return _moves(self._run(scripts.MOVE, queue, (target, *tags[:MOVED_AT_ONCE])), 3)

    def move_out(self, queue: str, target: str) -> tuple[int, list[Move]]:
        """Take up to 100 waiting messages out of *queue*, or continue with those taken before.

        They are unacked, held by the move (under the token "0"), until :meth:`end_move`. Returns
        (low, moves) as :meth:`begin_move` does; no moves if no message waits.
        """
        return _moves(self._run(scripts.MOVE_OUT, queue, (target,)), 6)

    def accept(self, queue: str, source: str, low_water: int, moves: Sequence[Move]) -> list[int]:
        """Store messages that come from *source*, each once; return the outcome of each.

        The outcome is STORED, DUPLICATE or NO_QUEUE. Dead letters stay dead letters. Atomic.
        """
        publisher = keys.publisher(self._prefix, queue, f"move:{source}")
        args: list[Any] = [low_water]
        for move in moves:
            rank, dead = rank_of(move.tag), move.dead_letter
            args += tag_like(move.tag), move.envelope, rank, move.number, move.delay_ms, move.ttl_ms
            args.append(move.failed)
            if dead is None:
                args += 0, ""
            else:
                args += dead.died_ms, f"{dead.reason}|{dead.count}|{dead.consumer}|{dead.error}"
        reply = self._wire.run(scripts.ACCEPT, self._keys(queue), args, publisher=publisher)
        return list(reply)

    def end_move(self, queue: str, tags: Sequence[str]) -> int:
        """Remove messages that are stored elsewhere now, counted as moved; return how many."""
        return sum(self._run(scripts.MOVED, queue, chunk) for chunk in chunks(tags))


def _moves(reply: Reply, width: int) -> tuple[int, list[Move]]:
    """Return low_water and the moves of a reply with *width* parts for each."""
    low_water, *flat = reply
    moves = []
    for i in range(0, len(flat), width):
        named = dict(zip(Move._fields, flat[i : i + width], strict=False))
        moves.append(Move(**{**named, "tag": text_of(flat[i]), "number": int(flat[i + 1])}))
    return int(low_water), moves


def _event(stored: bytes, at: int) -> JobEvent:
    matched = _EVENT.match(stored)
    if matched is None:  # not written by reliq, hence without meaning
        return JobEvent(at, "gone", "", "", "", b"")
    what, tag, reason, size = matched.groups()
    ends = matched.end() + int(size)
    error = stored[matched.end() : ends].decode("utf-8", "replace")
    return JobEvent(at, what.decode(), text_of(tag), text_of(reason), error, stored[ends:])  # type: ignore[arg-type]
