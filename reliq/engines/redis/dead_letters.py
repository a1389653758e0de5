"""Dead letters over Redis, kept for inspection; events of jobs, kept until batches know."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...store import unreadable
from ...store.inspection import DeadLetter
from ...store.jobs import JobEvent
from ...store.limits import chunks
from ...store.unreadable import left_out, number
from . import scripts
from .base import StoreBase, flat_of, text_of, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.values import Lease
    from .stream import Command


_INFO_FIELDS = 4
# What keep_events of the scripts writes; the error, which may be any text, has so many bytes.
_EVENT = re.compile(rb"\d+\|(dead|gone|waits)\|([^|]*)\|([^|]*)\|(\d{1,9})\|", re.ASCII)


class RedisDeadLetters(StoreBase):
    """Messages that were dead-lettered, and what became of jobs."""

    def dead_letter(
        self, queue: str, reason: str, error: str, leases: Sequence[Lease]
    ) -> list[str]:
        """Give up on messages; return the tags that were refused."""
        names = scripts.DEAD_LETTER.of(self._keys(queue))
        limit = self.options.dead_letter_max
        refused: list[str] = []
        for chunk in chunks(leases):
            args = (reason, error, limit, *flat_of(chunk))
            refused += texts(self._wire.execute(scripts.DEAD_LETTER, names, args))
        return refused

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

    def replay(self, queue: str, tags: Sequence[str]) -> list[str]:
        """Put dead letters back into *queue*, uncounted; return the tags that were."""
        names = scripts.REPLAY.of(self._keys(queue))
        replayed: list[str] = []
        for chunk in chunks(tags):
            replayed += texts(self._wire.execute(scripts.REPLAY, names, chunk))
        return replayed

    def purge_dead(self, queue: str, tags: Sequence[str]) -> int:
        """Remove dead letters for good; return how many."""
        names = scripts.PURGE_DEAD.of(self._keys(queue))
        return sum(self._wire.execute(scripts.PURGE_DEAD, names, batch) for batch in chunks(tags))

    def job_events(self, queue: str, limit: int, after: int = 0) -> list[JobEvent]:
        """Return up to *limit* events of jobs of *queue*, in order."""
        key = self._keys(queue).job_events
        found = self._wire.call(
            ("ZRANGEBYSCORE", key, f"({after}", "+inf", "WITHSCORES", "LIMIT", 0, limit)
        )
        return [_event(one, number(at)) for one, at in zip(found[::2], found[1::2], strict=True)]

    def forget_job_events(self, queue: str, numbers: Sequence[int]) -> None:
        """Remove events of which the batches have been told."""
        key = self._keys(queue).job_events
        self._wire.exchange([(("ZREMRANGEBYSCORE", key, one, one), None) for one in numbers])


def _event(stored: bytes, at: int) -> JobEvent:
    found = _EVENT.match(stored)
    if found is None:  # nobody of ours has written it: it says nothing
        return JobEvent(at, "gone", "", "", "", b"")
    what, tag, reason, size = found.groups()
    ends = found.end() + int(size)
    error = stored[found.end() : ends].decode("utf-8", "replace")
    return JobEvent(at, what.decode(), text_of(tag), text_of(reason), error, stored[ends:])  # type: ignore[arg-type]
