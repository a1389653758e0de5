"""Upkeep over Redis: messages that are due or have expired, leases that have ended, history."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...store.limits import BATCH, MINUTE_MS, chunks
from ...store.unreadable import number
from ...store.values import Layout, Promoted, Restored, Returned, Work, ignore_result
from . import scripts
from .base import StoreBase, text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...store.values import OnResult
    from .stream import Reply

# So many queues are noted by one command: about a ms, if each is noted.
_NOTED = 25
# So many queues are looked at by one command: well under a ms, if there is nothing to do.
_SURVEYED = 100


class RedisUpkeep(StoreBase):
    """What the consumers of a queue do for it, beside taking its messages."""

    def post_promote(self, queue: str, on_result: OnResult[Promoted]) -> None:
        """Make ready what is due, and notify where something is ready: for who cannot take it.

        What has expired is removed before. Where that is refused, whoever reserves is told.
        """
        self.post_expire(queue, ignore_result)

        def parse(reply: Reply) -> Promoted:
            next_due_ms, left = reply
            return Promoted(next_due_ms, left == 1)

        self._post(scripts.PROMOTE, queue, (BATCH,), then(parse, on_result))

    def post_expire(self, queue: str, on_result: OnResult[bool]) -> None:
        """Remove messages that wait beyond their time to live, some hundred a step.

        Counted as expired, or kept as dead letters where the queue says so
        (``x-dead-letter-expired``). The result is whether there may be more.
        """
        self._post(scripts.EXPIRE, queue, (BATCH,), then(bool, on_result))

    def post_restore(
        self,
        queue: str,
        lease_ms: int,
        on_result: OnResult[Restored],
        force: bool = False,
        include_messages: bool = False,
    ) -> None:
        """Return messages whose lease has ended: one step of the mutex-guarded pass.

        With *force* it does not wait its turn: there are leases that were ended just now.
        With *include_messages* the result has each restored message, and the envelopes also of the
        dead; without, how many there were: a hundred thousand come back sooner.
        """
        args = (
            self.consumer,
            0 if force else max(int(self.options.restore_interval * 1000), 1),
            BATCH,
            self._delivery_limit,
            self.options.dead_letter_max,
            self._dead_letter_ttl_ms,
            lease_ms,
            *self._backoff_ms,
            1 if include_messages else 0,
        )

        def parse(reply: Reply) -> Restored:
            granted, more, unacked, held, restored, died, consumers, to_route = reply
            return Restored(
                granted == 1,
                granted == 1 and more == 1,
                0 if granted else max(more, 0),
                unacked,
                dict(zip(texts(held[::2]), held[1::2], strict=True)),
                list(_returned(restored, include_messages)),
                list(_returned(died, include_messages)),
                texts(consumers),
                to_route,
            )

        self._post(scripts.RESTORE_VISIBLE, queue, args, then(parse, on_result))

    def post_survey(self, queues: Sequence[str], on_result: OnResult[dict[str, Work]]) -> None:
        """Ask what there is to do in *queues*; the result names those with something.

        Of several nodes it also names those that others consume from: what they do there nobody
        else sees.
        Changes nothing and is cheap, however many queues and messages: one command for some
        hundred queues where they can be reached by one. Each queue is seen at one instant;
        the result comes once for each command.
        """
        limits = (self.options.dead_letter_max, self._dead_letter_ttl_ms, int(self.has_nodes))
        for names in chunks(queues, _SURVEYED):
            places = [key for queue in names for key in scripts.SURVEY.of(self._keys(queue))]
            on_reply = then(partial(_work, names), on_result)
            self._wire.post_script(scripts.SURVEY, places, (self.consumer, *limits), on_reply)

    def post_snapshots(
        self, queues: Sequence[str], on_result: OnResult[int], every_ms: int = MINUTE_MS
    ) -> None:
        """Note counts and ledger of *queues* as they are now, each once in *every_ms*.

        Kept for 72 hours (72 times sixty *every_ms*), and deleted with the queue. Not of a queue
        that goes by itself (auto_delete, ``x-expires``). The result is in how many ms the next one
        is due; it comes once for each command.
        """
        for names in chunks(queues, _NOTED):
            places = [key for queue in names for key in scripts.SNAPSHOT.of(self._keys(queue))]
            self._wire.post_script(scripts.SNAPSHOT, places, (every_ms,), on_result)


def _returned(flat: Sequence[Any], envelopes: bool) -> Iterable[Returned]:
    """Read tag, count, consumer and envelope of each message."""
    for i in range(0, len(flat), 4):
        tag, count, consumer, envelope = flat[i : i + 4]
        kept = envelope if envelopes else None
        yield Returned(text_of(tag), number(count), text_of(consumer), kept)


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
