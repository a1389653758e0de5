"""What became of jobs, over Redis: kept by the scripts that do it, until batches are told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...store.jobs import JobEvent
from ...store.unreadable import number
from .base import StoreBase, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

# What keep_events of the scripts writes; the error, which may be any text, has so many bytes.
_EVENT = re.compile(rb"\d+\|(dead|gone|waits)\|([^|]*)\|([^|]*)\|(\d{1,9})\|", re.ASCII)


class RedisJobEvents(StoreBase):
    """The events of jobs."""

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
