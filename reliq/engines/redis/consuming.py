"""Consuming over Redis: messages are taken, acknowledged, or expire."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...store.limits import BATCH, MOST_REMEMBERED, chunks
from ...store.unreadable import number
from ...store.values import HOLDING, RESERVED_BYTES, Delivery, Promoted, Reservation, ignore_result
from . import scripts
from .base import StoreBase, then
from .stream import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.protocol import OnResult
    from .stream import Reply


_TEXT = "utf-8", "surrogateescape"
_LEFT, _HELD_BACK, _CLAIMED, _ISOLATED = 1, 2, 3, 4


class RedisConsuming(StoreBase):
    """The consuming half of a store."""

    def _reserve(
        self, queue: str, n: int, lease_ms: int, no_ack: bool, company: int
    ) -> tuple[Any, Any]:
        names = scripts.RESERVE.of(self._keys(queue))
        ack = 1 if no_ack else 0
        limits = (self._delivery_limit, RESERVED_BYTES)
        return names, (min(n, BATCH), lease_ms, self.consumer, ack, *limits, company)

    @staticmethod
    def _reservation(queue: str, reply: Reply) -> Reservation:
        next_due_ms, lease_ms, left, token, tags, envelopes, counts, places = reply
        deliveries = [
            Delivery(queue, str(tag, *_TEXT), str(token + i), count, envelope)
            for i, (tag, envelope, count) in enumerate(zip(tags, envelopes, counts, strict=True))
        ]
        if places:  # taken with no_ack
            deliveries = [
                replace(delivery, place=place.decode(), expires_ms=number(expires, -1))
                for delivery, place, expires in zip(
                    deliveries, places[::2], places[1::2], strict=True
                )
            ]
        return Reservation(
            deliveries,
            next_due_ms,
            lease_ms,
            left == _LEFT,
            left == _HELD_BACK,
            left == _CLAIMED,
            left == _ISOLATED,
        )

    def reserve(
        self, queue: str, n: int, lease_ms: int, no_ack: bool, company: int = HOLDING
    ) -> Reservation:
        """Take up to *n* messages, behind what was posted: acks make room for more."""
        names, args = self._reserve(queue, n, lease_ms, no_ack, company)
        return self._reservation(queue, self._wire.execute_in_order(scripts.RESERVE, names, args))

    def post_reserve(
        self,
        queue: str,
        n: int,
        lease_ms: int,
        no_ack: bool,
        on_result: OnResult[Reservation],
        company: int = HOLDING,
    ) -> None:
        """Post what :meth:`reserve` sends."""
        names, args = self._reserve(queue, n, lease_ms, no_ack, company)
        on_reply = then(partial(self._reservation, queue), on_result)
        self._wire.post_script(scripts.RESERVE, names, args, on_reply)

    def post_promote(self, queue: str, on_result: OnResult[Promoted]) -> None:
        """Make ready what is due, and notify; what has expired is removed before.

        Where that is refused, whoever reserves is told.
        """
        self.post_expire(queue, ignore_result)
        names = scripts.PROMOTE.of(self._keys(queue))

        def parse(reply: Reply) -> Promoted:
            next_due_ms, left = reply
            return Promoted(next_due_ms, left == 1)

        self._wire.post_script(scripts.PROMOTE, names, (BATCH,), then(parse, on_result))

    def post_ack(self, queue: str, tags: Sequence[str], on_result: OnResult[int]) -> None:
        """Finish messages, whoever holds their lease."""
        if queue not in self._ack_commands:
            names = scripts.ACK.of(self._keys(queue))
            if len(self._ack_commands) > MOST_REMEMBERED:
                self._ack_commands.clear()
            self._ack_commands[queue] = ("EVALSHA", scripts.ACK.sha, len(names), *names)
        command = (*self._ack_commands[queue], *tags)
        self._wire.post_packed(pack(command), command, on_result, scripts.ACK)

    def hand_back(self, queue: str, deliveries: Sequence[Delivery]) -> int:
        """Store again what was taken with *no_ack* and never handed out."""
        names = scripts.HAND_BACK.of(self._keys(queue))
        back = 0
        for chunk in chunks(deliveries):
            args = [
                part
                for item in chunk
                for part in (
                    item.tag,
                    item.place,
                    "" if item.expires_ms < 0 else item.expires_ms,
                    item.failed,
                    item.envelope or b"",
                )
            ]
            back += self._wire.execute(scripts.HAND_BACK, names, args)
        return back

    def post_expire(self, queue: str, on_result: OnResult[bool]) -> None:
        """Remove messages beyond their time to live; the result is whether there are more."""
        names = scripts.EXPIRE.of(self._keys(queue))
        self._wire.post_script(scripts.EXPIRE, names, (BATCH,), then(bool, on_result))
