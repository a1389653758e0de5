"""Consuming over Redis: leases, acks, returns, and the pass over what has ended."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import hiredis

from ...store import (
    Delivery,
    How,
    Lease,
    Lost,
    OnResult,
    Released,
    Reservation,
    Restored,
    Returned,
)
from . import scripts
from .base import (
    BATCH,
    MOST_REMEMBERED,
    StoreBase,
    batches,
    flat_of,
    texts,
    then,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .wire import Command, Reply


_HELD_BACK = 2


def returned(flat: Sequence[Any], envelopes: bool) -> Iterable[Returned]:
    """Read tag, count, consumer and envelope of each message."""
    for i in range(0, len(flat), 4):
        tag, count, consumer, envelope = flat[i : i + 4]
        yield Returned(tag.decode(), int(count), consumer.decode(), envelope if envelopes else None)


class RedisConsuming(StoreBase):
    """The consuming half of a store."""

    def _reserve(self, queue: str, n: int, lease_ms: int, no_ack: bool) -> tuple[Any, Any]:
        k = self._keys(queue)
        names = (
            k.messages,
            k.ready,
            k.delayed,
            k.unacked_index,
            k.unacked,
            k.deliveries,
            k.expiry,
            k.dead,
            k.dead_info,
            k.bell,
            k.stats,
            k.meta,
        )
        ack = 1 if no_ack else 0
        return names, (min(n, BATCH), lease_ms, self.consumer, ack, self._delivery_limit)

    @staticmethod
    def _reservation(queue: str, reply: Reply) -> Reservation:
        next_due_ms, lease_ms, left, token, tags, envelopes, counts = reply
        deliveries = [
            Delivery(queue, tag.decode(), str(token + i), count, envelope)
            for i, (tag, envelope, count) in enumerate(zip(tags, envelopes, counts, strict=True))
        ]
        return Reservation(deliveries, next_due_ms, lease_ms, left == 1, left == _HELD_BACK)

    def reserve(self, queue: str, n: int, lease_ms: int, no_ack: bool) -> Reservation:
        """Take up to *n* messages."""
        names, args = self._reserve(queue, n, lease_ms, no_ack)
        return self._reservation(queue, self._wire.execute(scripts.RESERVE, names, args))

    def post_reserve(
        self, queue: str, n: int, lease_ms: int, no_ack: bool, on_result: OnResult[Reservation]
    ) -> None:
        """Post what :meth:`reserve` sends."""
        names, args = self._reserve(queue, n, lease_ms, no_ack)
        on_reply = then(partial(self._reservation, queue), on_result)
        self._wire.post_script(scripts.RESERVE, names, args, on_reply)

    def post_ack(self, queue: str, tags: Sequence[str], on_result: OnResult[int]) -> None:
        """Finish messages, whoever holds their lease."""
        command = self._ack_commands.get(queue)
        if command is None:
            k = self._keys(queue)
            names = (
                k.messages,
                k.unacked_index,
                k.unacked,
                k.deliveries,
                k.stats,
                k.ready,
                k.delayed,
                k.expiry,
                k.dead,
                k.dead_info,
            )
            if len(self._ack_commands) > MOST_REMEMBERED:
                self._ack_commands.clear()
            constant: Command = ("EVALSHA", scripts.ACK.sha, len(names), *names)
            _, _, packed = hiredis.pack_command(constant).partition(b"\r\n")
            command = self._ack_commands[queue] = (constant, packed)
        constant, packed = command
        full = (*constant, *tags)
        data = b"*%d\r\n%b%b" % (
            len(full),
            packed,
            b"".join([b"$%d\r\n%b\r\n" % (len(tag), tag.encode()) for tag in tags]),
        )
        self._wire.post_packed(data, full, on_result, scripts.ACK)

    def release(self, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back to their old place; a requeued one is counted."""
        k = self._keys(queue)
        names = (
            k.ready,
            k.delayed,
            k.unacked_index,
            k.unacked,
            k.deliveries,
            k.expiry,
            k.dead,
            k.dead_info,
            k.bell,
            k.stats,
            k.meta,
            k.messages,
        )
        result = Released([], [])
        for batch in batches(leases):
            args = (how, self._delivery_limit, *self._backoff_ms, *flat_of(batch))
            refused, died = self._wire.execute(scripts.RELEASE, names, args)
            result.refused.extend(texts(refused))
            for tag, count in zip(died[::2], died[1::2], strict=True):
                result.dead.append(Returned(tag.decode(), int(count), self.consumer, None))
        return result

    def post_renew(
        self, queue: str, lease_ms: int, leases: Sequence[Lease], on_result: OnResult[Lost]
    ) -> None:
        """Extend leases, or end them now; the result comes once for each batch."""
        k = self._keys(queue)
        names = (k.unacked_index, k.unacked, k.meta, k.messages)

        def parse(reply: Reply) -> Lost:
            tags, gone, extended_ms = reply
            return Lost(texts(tags), texts(gone), extended_ms)

        for batch in batches(leases):
            args = (lease_ms, *flat_of(batch))
            self._wire.post_script(scripts.RENEW, names, args, then(parse, on_result))

    def post_restore(
        self,
        queue: str,
        lease_ms: int,
        on_result: OnResult[Restored],
        hurry: bool = False,
        told: bool = False,
    ) -> None:
        """Return messages whose lease has ended: one step of the mutex-guarded pass."""
        args = (
            self.consumer,
            0 if hurry else max(int(self.options.restore_interval * 1000), 1),
            BATCH,
            self._delivery_limit,
            self.options.dead_letter_max,
            self._dead_letter_ttl_ms,
            lease_ms,
            *self._backoff_ms,
            1 if told else 0,
        )

        def parse(reply: Reply) -> Restored:
            granted, more, unacked, held, restored, died, consumers, to_route = reply
            return Restored(
                granted == 1,
                granted == 1 and more == 1,
                0 if granted else max(more, 0),
                unacked,
                dict(zip(texts(held[::2]), held[1::2], strict=True)),
                list(returned(restored, told)),
                list(returned(died, told)),
                texts(consumers),
                to_route,
            )

        names = self._keys(queue)[:-1]
        self._wire.post_script(scripts.RESTORE_VISIBLE, names, args, then(parse, on_result))

    def leases_of(self, queue: str, consumer: str) -> list[Lease]:
        """Return the leases of *consumer*; one that ends with "/" stands for all that begin so."""
        names = (self._keys(queue).unacked,)
        found: set[Lease] = set()
        cursor = "0"
        while True:
            reply = self._wire.execute(scripts.LEASES_OF, names, (consumer, cursor, BATCH))
            cursor, *flat = texts(reply)
            found.update(map(Lease, flat[::2], flat[1::2]))
            if cursor == "0":
                return sorted(found)

    def end_wait(self) -> None:
        """End the doorbell's wait, so that it can begin anew for other queues."""
        if self._doorbell.listening:
            self._wire.post(("CLIENT", "UNBLOCK", self._doorbell.client_id))
