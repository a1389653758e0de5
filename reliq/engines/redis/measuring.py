"""What is counted of a queue, over Redis: one script, which reads all at one instant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ...errors import BrokerRefused, ReliqError, again
from ...message.delivery_tag import published_ms
from ...store.chunks import chunks
from ...store.inspection import Measure, QueueStatus
from ...store.unreadable import left_out
from . import scripts
from .base import StoreBase, text_of, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.inspection import Whereabouts
    from .scripts import Script
    from .stream import Command


_WHEREABOUTS: tuple[Whereabouts, ...] = ("", "there", "dead")
_COUNT = re.compile(rb"-?[0-9]{1,19}")
_PARTITIONS = re.compile(rb"[0-9]{1,2}")


def _ledger_of(broker: str, queue: str, stats: Sequence[bytes]) -> dict[str, int]:
    """Return the counters of a queue; one that is no number is left out."""
    found = dict(zip(texts(stats[::2]), stats[1::2], strict=True))
    wrong = [name for name, value in found.items() if not _COUNT.fullmatch(value)]
    if wrong:
        left_out(broker, f"counters of {queue!r}", wrong)
    return {name: int(value) for name, value in found.items() if name not in wrong}


class RedisMeasuring(StoreBase):
    """What a store counts."""

    def status(self, queue: str, *, checked: bool = True) -> QueueStatus | None:
        """Return the counts and the ledger of *queue*; None where there is no such queue."""
        del checked  # it costs nothing
        measured = self._measured(queue)
        return None if measured is None else measured.status

    def oldest_ms(self, queue: str) -> int | None:
        """Return when the oldest ready message was published; None where nothing is ready."""
        measured = self._measured(queue)
        return None if measured is None else measured.oldest_ms

    def whereabouts(self, queue: str, tags: Sequence[str]) -> dict[str, Whereabouts]:
        """Say of each of *tags* whether its message is in *queue*, some hundred at one instant."""
        names = scripts.WHEREABOUTS.of(self._keys(queue))
        script = scripts.WHEREABOUTS
        start = ("EVALSHA", script.sha, len(names), *names)
        replies = self._wire.exchange([((*start, *some), script) for some in chunks(tags)])
        found = (_WHEREABOUTS[reply] for part in replies for reply in part)
        return dict(zip(tags, found, strict=True))

    def _measured(self, queue: str) -> Measure | None:
        names = scripts.MEASURE.of(self._keys(queue))
        exists, *reply = self._wire.execute(scripts.MEASURE, names, ())
        return _measure(self.broker, queue, *reply) if exists else None

    def measure(self, queues: Sequence[str]) -> list[Measure]:
        """Return what there is of *queues*, each at one instant; none for one that is gone."""
        found: list[Measure] = []
        refused: dict[str, ReliqError] = {}
        for names in chunks(queues):
            replies = self._wire.replies([self._measure_command(queue) for queue in names])
            for queue, reply in zip(names, replies, strict=True):
                if isinstance(reply, BrokerRefused):
                    refused[queue] = reply
                elif isinstance(reply, ReliqError):
                    raise again(reply)
                elif reply[0]:
                    found.append(_measure(self.broker, queue, *reply[1:]))
        if refused and not found:  # not of one queue, but of this user's rights
            raise again(next(iter(refused.values())))
        left_out(self.broker, "queues", list(refused))
        return found

    def _measure_command(self, queue: str) -> tuple[Command, Script]:
        names = scripts.MEASURE.of(self._keys(queue))
        return ("EVALSHA", scripts.MEASURE.sha, len(names), *names), scripts.MEASURE


def _measure(  # the reply, part by part
    broker: str,
    queue: str,
    ready: int,
    delayed: int,
    unacked: int,
    dead: int,
    stored: int,
    consumers: int,
    stats: list[bytes],
    arguments: bytes,
    paused: int,
    now_ms: int,
    due: int,
    ranks: list[Any],
    layout: list[bytes | None],
) -> Measure:
    ledger = _ledger_of(broker, queue, stats)
    status = QueueStatus(
        queue,
        ready,
        delayed,
        unacked,
        dead,
        stored,
        consumers,
        ledger,
        {"": arguments},
        paused == 1,
        max([1, *(int(text) for text in layout if text and _PARTITIONS.fullmatch(text))]),
    )
    by_rank = dict(zip(ranks[::3], ranks[1::3], strict=True))
    oldest = min(filter(None, (published_ms(text_of(tag)) for tag in ranks[2::3])), default=None)
    return Measure(status, now_ms, by_rank, oldest, due)
