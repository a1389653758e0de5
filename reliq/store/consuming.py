"""Consuming over Redis: take messages under a lease, acknowledge them, or give them back.

Also the upkeep by a queue's consumers: due and expired messages, expired leases, history.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..lua import keys, scripts
from ..values.limits import BATCH, MINUTE_MS, chunks
from ..values.unreadable import number
from ..values.values import (
    HOLDING,
    RESERVED_BYTES,
    Delivery,
    How,
    Layout,
    Lease,
    Logged,
    Lost,
    Promoted,
    Released,
    Reservation,
    Restored,
    Returned,
    Work,
    ignore_result,
)
from .base import StoreBase, flat_of, text_of, texts, then

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from ..client.pipeline import OnReply
    from ..client.stream import Reply
    from ..lua.scripts import Script
    from ..values.values import OnResult


_TEXT = "utf-8", "surrogateescape"
# The number of queues that one command records: about a ms if each is recorded.
_NOTED = 25
# The number of queues that one command surveys: well under a ms if none needs work.
_SURVEYED = 100
_LEFT, _HELD_BACK, _CLAIMED, _ISOLATED = 1, 2, 3, 4


def _logged(reply: Reply) -> Logged:
    place, entries = reply
    pairs = [entry.partition(b"|") for entry in entries]
    return Logged(place.decode(), [(str(tag, *_TEXT), envelope) for tag, _, envelope in pairs])


class RedisConsuming(StoreBase):
    """The consuming part of a store."""

    def _reserve(self, n: int, lease_ms: int, no_ack: bool, occupancy: int) -> tuple[Any, ...]:
        ack = 1 if no_ack else 0
        limits = (self._delivery_limit, RESERVED_BYTES, self.options.dead_letter_max)
        return min(n, BATCH), lease_ms, self.consumer, ack, *limits, occupancy

    @staticmethod
    def _reservation(queue: str, reply: Reply) -> Reservation:
        next_due_ms, lease_ms, left, token, tags, envelopes, counts, places, limited = reply
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
            limited == 1,
        )

    def reserve(
        self, queue: str, n: int, lease_ms: int, no_ack: bool, occupancy: int = HOLDING
    ) -> Reservation:
        """Take up to *n* messages (at least 1) under a lease; with *no_ack*, finish them at once.

        Takes at most RESERVED_BYTES of envelopes, but always one message; *left* reports the rest.
        The last delivery of a message before its limit goes only to a consumer that is ALONE: it
        holds no message of any queue, and makes no other request meanwhile. A HOLDING or IDLE
        consumer claims the message; a BUSY one leaves it to others.
        """
        args = self._reserve(n, lease_ms, no_ack, occupancy)
        return self._reservation(queue, self._run_in_order(scripts.RESERVE, queue, args))

    def post_reserve(
        self,
        queue: str,
        n: int,
        lease_ms: int,
        no_ack: bool,
        on_result: OnResult[Reservation],
        occupancy: int = HOLDING,
    ) -> None:
        """Post the command of :meth:`reserve`."""
        args = self._reserve(n, lease_ms, no_ack, occupancy)
        self._post(scripts.RESERVE, queue, args, then(partial(self._reservation, queue), on_result))

    def post_ack(self, queue: str, tags: Sequence[str], on_result: OnResult[int]) -> None:
        """Finish messages, whichever consumer holds their lease. Acking twice is harmless.

        A last tag of "" marks a queue with limits: another consumer is notified of the free slot.
        """
        try:  # for each message: saves a call of _post
            prefix = self._prefixes[scripts.ACK, queue, ""]
        except KeyError:
            prefix = self._prefix_of(scripts.ACK, queue)
        self._wire.post((prefix, *tags), on_result, scripts.ACK)

    def hand_back(self, queue: str, deliveries: Sequence[Delivery]) -> int:
        """Store undelivered messages of a *no_ack* reserve again; return how many.

        They return to their old place, uncounted, as if not taken; none if the queue was deleted.
        Must not be retried: after an error, it is unknown whether the step was carried out.
        """
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
            back += self._run(scripts.HAND_BACK, queue, args)
        return back

    def post_read_log(
        self, exchange: str, place: str, ttl_ms: int, n: int, on_result: OnResult[Logged]
    ) -> None:
        """Read up to *n* entries after *place* ("0": all), at most *ttl_ms* old.

        With *n* 0, only asks for the place of the last entry.
        """
        key = keys.log(self._prefix, exchange)
        command, script = scripts.READ_LOG.over(None, (place, ttl_ms, n), log=key)
        self._wire.post(command, then(_logged, on_result), script)

    # -- leases

    def release(
        self, queue: str, how: How, leases: Sequence[Lease], error: str = "nacked"
    ) -> Released:
        """Give messages back to their old place.

        A nacked message is counted and may have to wait (``redelivery_backoff``); at its delivery
        limit, it is dead-lettered with *error* instead. A begun one is finished. Ordered with
        posts: a reserve that is posted later finds the messages.
        """
        result = Released([], [])
        for chunk in chunks(leases):
            limits = self._delivery_limit, *self._backoff_ms, self.options.dead_letter_max
            args = (how, *limits, error, *flat_of(chunk))
            refused, died = self._run_in_order(scripts.RELEASE, queue, args)
            result.refused.extend(texts(refused))
            for tag, count in zip(died[::2], died[1::2], strict=True):
                result.dead.append(Returned(text_of(tag), int(count), self.consumer, None))
        return result

    def post_renew(
        self,
        queue: str,
        lease_ms: int,
        leases: Sequence[Lease],
        on_result: OnResult[Lost],
        begun: Collection[str] = (),
    ) -> None:
        """Extend leases; the result, once for each chunk, is the lost leases.

        The messages with the tags *begun* are acked, and their tasks run: when such a lease ends,
        the message is finished.
        """

        def parse(reply: Reply) -> Lost:
            tags, gone, extended_ms = reply
            return Lost(texts(tags), texts(gone), extended_ms)

        for chunk in chunks(leases):
            marked = (
                Lease(tag, f"{token}|begun") if tag in begun else Lease(tag, token)
                for tag, token in chunk
            )
            args = (lease_ms, *flat_of(marked))
            self._post(scripts.RENEW, queue, args, then(parse, on_result))

    def post_end_leases(
        self, queue: str, leases: Sequence[Lease], on_result: OnResult[list[str]]
    ) -> None:
        """End leases now: the next pass returns their messages.

        The result, once for each chunk, is the refused tags.
        """
        for chunk in chunks(leases):
            args = flat_of(chunk)
            self._post(scripts.END_LEASES, queue, args, then(texts, on_result))

    def leases_of(self, queue: str, owner: str) -> list[Lease]:
        """Return the leases of a consumer, which is one connection.

        A session's id with a slash stands for all its connections, present and past.
        """
        leases: set[Lease] = set()
        cursor = "0"
        while True:
            args = (owner, cursor)
            cursor, *flat = texts(self._run(scripts.LEASES_OF, queue, args))
            leases.update(map(Lease, flat[::2], flat[1::2]))
            if cursor == "0":
                return sorted(leases)

    # -- upkeep

    def post_promote(self, queue: str, on_result: OnResult[Promoted]) -> None:
        """Make due messages ready and notify if any are ready, for callers that cannot reserve.

        Expired messages are removed first; the next reserve raises an error of that step.
        """
        self.post_expire(queue, ignore_result)

        def parse(reply: Reply) -> Promoted:
            next_due_ms, left = reply
            return Promoted(next_due_ms, left == 1)

        self._post(scripts.PROMOTE, queue, (), then(parse, on_result))

    def post_expire(self, queue: str, on_result: OnResult[bool]) -> None:
        """Remove messages that have waited beyond their TTL, at most 200 in a step.

        They are counted as expired, or become dead letters if the queue requires it
        (``x-dead-letter-expired``). The result is whether there may be more.
        """
        limits = (self.options.dead_letter_max,)
        self._post(scripts.EXPIRE, queue, limits, then(bool, on_result))

    def post_restore(
        self,
        queue: str,
        lease_ms: int,
        on_result: OnResult[Restored],
        force: bool = False,
        include_messages: bool = False,
    ) -> None:
        """Return messages with expired leases: one step of the mutex-guarded pass.

        *force* skips the pause between passes, for leases that were ended just now. With
        *include_messages*, the result lists each restored message, with envelopes, also of dead
        letters. Otherwise messages are only counted, which is faster: 100,000 return sooner.
        """
        args = (
            self.consumer,
            0 if force else max(int(self.options.restore_interval * 1000), 1),
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
        """Query which of *queues* need work; the result names those that do.

        With several nodes, it also names queues with other consumers, whose work there is not
        visible otherwise. Cheap, however many queues and messages there are. Each queue is read at
        one instant; the result comes once for each command.
        """
        limits = (self.options.dead_letter_max, self._dead_letter_ttl_ms, int(self.has_nodes))
        for names in self._together(queues, _SURVEYED):
            on_reply = then(partial(_work, names), on_result)
            self._post_each(scripts.SURVEY, names, (self.consumer, *limits), on_reply)

    def post_snapshots(
        self, queues: Sequence[str], on_result: OnResult[int], every_ms: int = MINUTE_MS
    ) -> None:
        """Record the counts and ledger of *queues* now, each once in *every_ms*.

        Temporary queues (auto_delete, ``x-expires``) are skipped. The result is the ms until the
        next snapshot is due; it comes once for each command.
        """
        for names in self._together(queues, _NOTED):
            self._post_each(scripts.SNAPSHOT, names, (every_ms,), on_result)

    def _post_each(
        self, script: Script, queues: Sequence[str], args: Sequence[Any], on_reply: OnReply
    ) -> None:
        names = [key for queue in queues for key in script.of(self._keys(queue))]
        self._wire.post(("EVALSHA", script.sha, len(names), *names, *args), on_reply, script)

    def _together(self, queues: Sequence[str], at_once: int) -> Iterator[Sequence[str]]:
        """Yield groups of *queues* that one command can reach."""
        return chunks(queues, at_once)


def _returned(flat: Sequence[Any], envelopes: bool) -> Iterable[Returned]:
    for i in range(0, len(flat), 4):
        tag, count, consumer, envelope = flat[i : i + 4]
        kept = envelope if envelopes else None
        yield Returned(text_of(tag), number(count), text_of(consumer), kept)


def _work(names: Sequence[str], reply: Reply) -> dict[str, Work]:
    return {
        names[place]: Work(
            wait_ms, frozenset(texts(flags)), Layout(partitions or 1, end) if end else None
        )
        for place, wait_ms, partitions, end, flags in reply
    }
