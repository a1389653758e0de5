"""What is counted of queues over Redis, now and in their past, and the work that they need."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import BrokerRefused, ReliqError, again
from ...message.delivery_tag import published_ms
from ...store.history import Snapshot, snapshots
from ...store.inspection import Measure, QueueStatus
from ...store.limits import MINUTE_MS, chunks
from ...store.unreadable import left_out
from ...store.values import Layout, Work
from . import scripts
from .base import StoreBase, text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.inspection import Whereabouts
    from ...store.protocol import OnResult
    from .scripts import Script
    from .stream import Command, Reply


_WHEREABOUTS: tuple[Whereabouts, ...] = ("", "there", "dead")
_COUNT = re.compile(rb"-?[0-9]{1,19}")
_PARTITIONS = re.compile(rb"[0-9]{1,2}")
# So many queues are noted by one command: about a ms, if each is noted.
_NOTED = 25
_BLOCK = re.compile(rb"[0-9]{1,15}")
# So many queues are looked at by one command: well under a ms, if there is nothing to do.
_SURVEYED = 100


def _ledger_of(broker: str, queue: str, stats: Sequence[bytes]) -> dict[str, int]:
    """Return the counters of a queue; one that is no number is left out."""
    found = dict(zip(texts(stats[::2]), stats[1::2], strict=True))
    wrong = [name for name, value in found.items() if not _COUNT.fullmatch(value)]
    if wrong:
        left_out(broker, f"counters of {queue!r}", wrong)
    return {name: int(value) for name, value in found.items() if name not in wrong}


class RedisMeasuring(StoreBase):
    """Counts, history and survey of queues."""

    def status(self, queue: str) -> QueueStatus | None:
        """Return the counts and the ledger of *queue*; None where there is no such queue."""
        exists, *reply = self._wire.call(*self._measure_command(queue))
        return _measure(self.broker, queue, *reply).status if exists else None

    def whereabouts(self, queue: str, tags: Sequence[str]) -> dict[str, Whereabouts]:
        """Say of each of *tags* whether its message is in *queue*, some hundred at one instant."""
        names = scripts.WHEREABOUTS.of(self._keys(queue))
        script = scripts.WHEREABOUTS
        start = ("EVALSHA", script.sha, len(names), *names)
        replies = self._wire.exchange([((*start, *some), script) for some in chunks(tags)])
        found = (_WHEREABOUTS[reply] for part in replies for reply in part)
        return dict(zip(tags, found, strict=True))

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

    def post_snapshots(
        self, queues: Sequence[str], on_result: OnResult[int], every_ms: int = MINUTE_MS
    ) -> None:
        """Note counts and ledger of *queues*, each once a minute: one command for some of them."""
        for names in chunks(queues, _NOTED):
            places = [key for queue in names for key in scripts.SNAPSHOT.of(self._keys(queue))]
            self._wire.post_script(scripts.SNAPSHOT, places, (every_ms,), on_result)

    def history(
        self, queue: str, since_ms: int, now_ms: int, every_ms: int = MINUTE_MS
    ) -> list[Snapshot]:
        """Return the snapshots of *queue* from *since_ms* on, oldest first."""
        flat = self._wire.call(("HGETALL", self._keys(queue).history))
        blocks = {
            int(name): records
            for name, records in zip(flat[::2], flat[1::2], strict=True)
            if _BLOCK.fullmatch(name)
        }
        try:
            return snapshots(blocks, since_ms, now_ms, every_ms)
        except ValueError:
            left_out(self.broker, "histories of queues", [queue])
            return []

    def post_survey(self, queues: Sequence[str], on_result: OnResult[dict[str, Work]]) -> None:
        """Ask what there is to do in *queues*: one command for each hundred of them.

        Of several nodes also those are named that others consume from, too: what they do there
        nobody else sees.
        """
        limits = (self.options.dead_letter_max, self._dead_letter_ttl_ms, int(self.has_nodes))
        for names in chunks(queues, _SURVEYED):
            places = [key for queue in names for key in scripts.SURVEY.of(self._keys(queue))]
            on_reply = then(partial(_work, names), on_result)
            self._wire.post_script(scripts.SURVEY, places, (self.consumer, *limits), on_reply)


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


def _work(names: Sequence[str], reply: Reply) -> dict[str, Work]:
    return {
        names[place]: Work(
            wait_ms,
            expired == 1,
            idle > 0,
            Layout(partitions or 1, end) if end else None,
            owed == 1,
            idle == 2,  # noqa: PLR2004 - see the script
        )
        for place, wait_ms, expired, idle, partitions, end, owed in reply
    }
