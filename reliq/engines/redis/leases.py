"""Leases over Redis after they were granted: given back, renewed, or ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.chunks import chunks
from ...store.limits import BATCH
from ...store.values import How, Lease, Lost, Released, Returned
from . import scripts
from .base import StoreBase, flat_of, text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.protocol import OnResult
    from .stream import Reply


class RedisLeases(StoreBase):
    """What becomes of leases while their consumer lives."""

    def release(self, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back to their old place; a requeued one is counted."""
        names = scripts.RELEASE.of(self._keys(queue))
        result = Released([], [])
        for chunk in chunks(leases):
            args = (how, self._delivery_limit, *self._backoff_ms, *flat_of(chunk))
            refused, died = self._wire.execute(scripts.RELEASE, names, args)
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
