"""The pass over Redis: messages whose lease has ended go back, and what is old goes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...store.limits import BATCH
from ...store.unreadable import number
from ...store.values import Restored, Returned
from . import scripts
from .base import StoreBase, text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...store.protocol import OnResult
    from .stream import Reply


def _returned(flat: Sequence[Any], envelopes: bool) -> Iterable[Returned]:
    """Read tag, count, consumer and envelope of each message."""
    for i in range(0, len(flat), 4):
        tag, count, consumer, envelope = flat[i : i + 4]
        kept = envelope if envelopes else None
        yield Returned(text_of(tag), number(count), text_of(consumer), kept)


class RedisRestoring(StoreBase):
    """What becomes of leases whose consumer is gone, or did not renew them."""

    def post_restore(
        self,
        queue: str,
        lease_ms: int,
        on_result: OnResult[Restored],
        force: bool = False,
        include_messages: bool = False,
    ) -> None:
        """Return messages whose lease has ended: one step of the mutex-guarded pass."""
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

        names = scripts.RESTORE_VISIBLE.of(self._keys(queue))
        self._wire.post_script(scripts.RESTORE_VISIBLE, names, args, then(parse, on_result))
