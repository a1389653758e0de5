"""Consuming over Redis: leases, acks, returns, and the pass over what has ended."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...store.batches import batches
from ...store.limits import BATCH, MOST_REMEMBERED
from ...store.unreadable import number
from ...store.values import (
    HOLDING,
    RESERVED_BYTES,
    Delivery,
    How,
    Lease,
    Lost,
    Released,
    Reservation,
    Restored,
    Returned,
    Work,
)
from . import scripts
from .base import StoreBase, flat_of, text_of, texts, then
from .wire import pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...store.protocol import OnResult
    from .wire import Command, Reply


_LEFT, _HELD_BACK, _CLAIMED, _ISOLATED = 1, 2, 3, 4
# So many queues are looked at by one command: well under a ms, if there is nothing to do.
_SURVEYED = 100


def _work(names: Sequence[str], reply: Reply) -> dict[str, Work]:
    return {
        names[place]: Work(wait_ms, expired == 1, idle == 1)
        for place, wait_ms, expired, idle in reply
    }


def returned(flat: Sequence[Any], envelopes: bool) -> Iterable[Returned]:
    """Read tag, count, consumer and envelope of each message."""
    for i in range(0, len(flat), 4):
        tag, count, consumer, envelope = flat[i : i + 4]
        kept = envelope if envelopes else None
        yield Returned(text_of(tag), number(count), text_of(consumer), kept)


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
            Delivery(queue, text_of(tag), str(token + i), count, envelope)
            for i, (tag, envelope, count) in enumerate(zip(tags, envelopes, counts, strict=True))
        ]
        if places:  # taken with no_ack
            deliveries = [
                delivery._replace(place=place.decode(), expires_ms=number(expires, -1))
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
        """Take up to *n* messages."""
        names, args = self._reserve(queue, n, lease_ms, no_ack, company)
        return self._reservation(queue, self._wire.execute(scripts.RESERVE, names, args))

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

    def post_promote(self, queue: str, on_result: OnResult[Reservation]) -> None:
        """Post a reserve of nothing: it begins with what is due, and notifies."""
        self.post_reserve(queue, 0, 0, False, on_result)

    def post_ack(self, queue: str, tags: Sequence[str], on_result: OnResult[int]) -> None:
        """Finish messages, whoever holds their lease."""
        command = self._ack_commands.get(queue)
        if command is None:
            names = scripts.ACK.of(self._keys(queue))
            if len(self._ack_commands) > MOST_REMEMBERED:
                self._ack_commands.clear()
            constant: Command = ("EVALSHA", scripts.ACK.sha, len(names), *names)
            _, _, packed = pack(constant).partition(b"\r\n")
            command = self._ack_commands[queue] = (constant, packed)
        constant, packed = command
        full = (*constant, *tags)
        encoded = [tag.encode("utf-8", "surrogateescape") for tag in tags]
        data = b"*%d\r\n%b%b" % (
            len(full),
            packed,
            b"".join([b"$%d\r\n%b\r\n" % (len(tag), tag) for tag in encoded]),
        )
        self._wire.post_packed(data, full, on_result, scripts.ACK)

    def hand_back(self, queue: str, deliveries: Sequence[Delivery]) -> int:
        """Store again what was taken with *no_ack* and never handed out."""
        names = scripts.HAND_BACK.of(self._keys(queue))
        back = 0
        for batch in batches(deliveries):
            args = [
                part
                for item in batch
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

    def release(self, queue: str, how: How, leases: Sequence[Lease]) -> Released:
        """Give messages back to their old place; a requeued one is counted."""
        names = scripts.RELEASE.of(self._keys(queue))
        result = Released([], [])
        for batch in batches(leases):
            args = (how, self._delivery_limit, *self._backoff_ms, *flat_of(batch))
            refused, died = self._wire.execute(scripts.RELEASE, names, args)
            result.refused.extend(texts(refused))
            for tag, count in zip(died[::2], died[1::2], strict=True):
                result.dead.append(Returned(text_of(tag), int(count), self.consumer, None))
        return result

    def post_renew(
        self, queue: str, lease_ms: int, leases: Sequence[Lease], on_result: OnResult[Lost]
    ) -> None:
        """Extend leases; the result comes once for each batch."""
        names = scripts.RENEW.of(self._keys(queue))

        def parse(reply: Reply) -> Lost:
            tags, gone, extended_ms = reply
            return Lost(texts(tags), texts(gone), extended_ms)

        for batch in batches(leases):
            args = (lease_ms, *flat_of(batch))
            self._wire.post_script(scripts.RENEW, names, args, then(parse, on_result))

    def post_end_leases(
        self, queue: str, leases: Sequence[Lease], on_result: OnResult[Lost]
    ) -> None:
        """End leases now; the result comes once for each batch."""
        self.post_renew(queue, 0, leases, on_result)

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
                list(returned(restored, include_messages)),
                list(returned(died, include_messages)),
                texts(consumers),
                to_route,
            )

        names = scripts.RESTORE_VISIBLE.of(self._keys(queue))
        self._wire.post_script(scripts.RESTORE_VISIBLE, names, args, then(parse, on_result))

    def post_survey(self, queues: Sequence[str], on_result: OnResult[dict[str, Work]]) -> None:
        """Ask what there is to do in *queues*: one command for each hundred of them."""
        limits = (self.consumer, self.options.dead_letter_max, self._dead_letter_ttl_ms)
        for start in range(0, len(queues), _SURVEYED):
            names = queues[start : start + _SURVEYED]
            places = [key for queue in names for key in scripts.SURVEY.of(self._keys(queue))]
            on_reply = then(partial(_work, names), on_result)
            self._wire.post_script(scripts.SURVEY, places, limits, on_reply)

    def post_expire(self, queue: str, on_result: OnResult[bool]) -> None:
        """Remove messages beyond their time to live; the result is whether there are more."""
        names = scripts.EXPIRE.of(self._keys(queue))
        self._wire.post_script(scripts.EXPIRE, names, (BATCH,), then(bool, on_result))

    def leases_of(self, queue: str, consumer: str) -> list[Lease]:
        """Return the leases of *consumer*: of one connection."""
        names = scripts.LEASES_OF.of(self._keys(queue))
        found: set[Lease] = set()
        cursor = "0"
        while True:
            reply = self._wire.execute(scripts.LEASES_OF, names, (consumer, cursor, BATCH))
            cursor, *flat = texts(reply)
            found.update(map(Lease, flat[::2], flat[1::2]))
            if cursor == "0":
                return sorted(found)

    def leases_of_session(self, queue: str, session: str) -> list[Lease]:
        """Return the leases of all connections of *session*: their names begin with its own."""
        return self.leases_of(queue, session + "/")

    def end_wait(self) -> None:
        """End the notifier's wait, so that it can begin anew for other queues."""
        if self._notifier.listening:
            self._wire.post(("CLIENT", "UNBLOCK", self._notifier.client_id))
