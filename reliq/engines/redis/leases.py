"""Leases over Redis after they were granted: given back, renewed, ended, or found to have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...store.limits import BATCH, chunks
from ...store.unreadable import number
from ...store.values import How, Lease, Lost, Released, Restored, Returned
from . import scripts
from .base import StoreBase, flat_of, text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...store.protocol import OnResult
    from .stream import Reply


class RedisLeases(StoreBase):
    """What becomes of leases, and of messages whose lease has ended."""

    def release(self, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back to their old place; a requeued one is counted.

        In the order of what is posted: a reserve that is posted after it finds them.
        """
        names = scripts.RELEASE.of(self._keys(queue))
        result = Released([], [])
        for chunk in chunks(leases):
            args = (how, self._delivery_limit, *self._backoff_ms, *flat_of(chunk))
            refused, died = self._wire.execute_in_order(scripts.RELEASE, names, args)
            result.refused.extend(texts(refused))
            for tag, count in zip(died[::2], died[1::2], strict=True):
                result.dead.append(Returned(text_of(tag), int(count), self.consumer, None))
        return result

    def post_renew(
        self, queue: str, lease_ms: int, leases: Sequence[Lease], on_result: OnResult[Lost]
    ) -> None:
        """Extend leases; the result comes once for each chunk."""
        names = scripts.RENEW.of(self._keys(queue))

        def parse(reply: Reply) -> Lost:
            tags, gone, extended_ms = reply
            return Lost(texts(tags), texts(gone), extended_ms)

        for chunk in chunks(leases):
            args = (lease_ms, *flat_of(chunk))
            self._wire.post_script(scripts.RENEW, names, args, then(parse, on_result))

    def post_end_leases(
        self, queue: str, leases: Sequence[Lease], on_result: OnResult[list[str]]
    ) -> None:
        """End leases now; the result comes once for each chunk."""
        names = scripts.END_LEASES.of(self._keys(queue))
        for chunk in chunks(leases):
            args = flat_of(chunk)
            self._wire.post_script(scripts.END_LEASES, names, args, then(texts, on_result))

    def leases_of(self, queue: str, consumer: str) -> list[Lease]:
        """Return the leases of *consumer*: of one connection."""
        return self._leases(queue, consumer, of_session=False)

    def leases_of_session(self, queue: str, session: str) -> list[Lease]:
        """Return the leases of all connections of *session*."""
        return self._leases(queue, session, of_session=True)

    def _leases(self, queue: str, owner: str, *, of_session: bool) -> list[Lease]:
        names = scripts.LEASES_OF.of(self._keys(queue))
        found: set[Lease] = set()
        cursor = "0"
        while True:
            args = (owner, 1 if of_session else 0, cursor, BATCH)
            cursor, *flat = texts(self._wire.execute(scripts.LEASES_OF, names, args))
            found.update(map(Lease, flat[::2], flat[1::2]))
            if cursor == "0":
                return sorted(found)

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


def _returned(flat: Sequence[Any], envelopes: bool) -> Iterable[Returned]:
    """Read tag, count, consumer and envelope of each message."""
    for i in range(0, len(flat), 4):
        tag, count, consumer, envelope = flat[i : i + 4]
        kept = envelope if envelopes else None
        yield Returned(text_of(tag), number(count), text_of(consumer), kept)
