"""Publishing over Redis: store messages in queues, each publish number once."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from ..lua import keys, scripts
from ..message.queue_names import queue_of
from ..values.limits import LONG_MS, MOST_REMEMBERED, MOVES_KEPT_MS, SHORT_MS, alike
from .base import StoreBase, gathered, then

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..client.stream import Command, Prefix
    from ..lua.scripts import Script
    from ..values.values import OnResult, Publication

RENEW_EVERY_S = 900.0
"""The interval at which a publisher repeats how long to keep its numbers, and the age up to
which they are kept for the short time."""


class RedisPublishing(StoreBase):
    """The publishing part of a store."""

    _checks_bindings = True
    """Whether the publish script checks the version of the bindings: they are in its slot."""
    _has_posted = False

    def _publish_command(self, items: Sequence[Publication]) -> tuple[Command, Script]:
        """Return the command that stores *items*, which differ only in the message."""
        first = items[0]
        if first.logged:
            entries = [part for item in items for part in (item.tag, item.envelope)]
            names = {
                "log": keys.log(self._prefix, first.exchange),
                "bindings": keys.bindings(self._prefix, first.exchange),
                "guard": keys.guard(self._prefix, first.exchange),
            }
            return scripts.LOG.over(None, (first.version, *entries), **names)
        if len(items) == 1:
            return self._single_command(first, first.low_water), scripts.PUBLISH
        command = [*self._single_command(first, max(item.low_water for item in items))]
        for item in items[1:]:
            command += item.tag, item.envelope, item.rank
            command += item.number, item.delay_ms, item.ttl_ms
        return tuple(command), scripts.PUBLISH

    def _single_command(self, first: Publication, low_water: int) -> Command:
        queue, exchange, number = first.queue, first.exchange, first.number
        try:
            prefix = self._prefixes[scripts.PUBLISH, queue, exchange]
        except KeyError:
            prefix = self._publish_prefix(queue, exchange)
        keep = 0
        if number:
            keep = MOVES_KEPT_MS if first.moved else self._keep_ms(queue, first.publisher)
        return (
            prefix,
            1 if exchange or not first.create else 0,
            first.version if self._checks_bindings else b"",
            keep,
            low_water,
            self.options.dead_letter_max,
            first.publisher,
            first.tag,
            first.envelope,
            first.rank,
            number,
            first.delay_ms,
            first.ttl_ms,
        )

    def _publish_prefix(self, queue: str, exchange: str) -> Prefix:
        of_queue = self._keys(queue)
        # The anonymous exchange has no bindings: all keys are then in one slot.
        bindings = of_queue.guard
        if exchange and self._checks_bindings:
            bindings = keys.bindings(self._prefix, exchange)
        names = scripts.PUBLISH.named(of_queue, bindings=bindings)
        return self._remember(scripts.PUBLISH, names, queue, exchange)

    def _keep_ms(self, queue: str, publisher: str) -> int:
        """Return how long to keep the numbers in *queue*, in ms; negative if sent recently.

        A negative time applies only if the server has no numbers: it may have lost them since.
        """
        now, place = monotonic(), (queue, publisher)
        keep = kept_ms(now - self._began, self.keeps_long)
        if self._kept_epoch != self._wire.dials:
            self._kept, self._kept_epoch = {}, self._wire.dials
        if place in self._kept:
            if now - self._kept[place] < RENEW_EVERY_S:
                return -keep
            del self._kept[place]
        return keep

    def _note_kept(self, publications: Sequence[Publication], outcomes: Sequence[int]) -> None:
        for item, outcome in zip(publications, outcomes, strict=True):
            place = (item.queue, item.publisher)
            if outcome > 0 and item.number and place not in self._kept:
                if not item.moved and len(self._numbered) < MOST_REMEMBERED:
                    self._numbered.add(place)
                if len(self._kept) > MOST_REMEMBERED:
                    self._kept.clear()
                self._kept[place] = monotonic()

    def forget_publishers(self, finished: Callable[[str], bool]) -> None:
        """Remove the numbers that this store has stored for *finished* publishers.

        A finished publisher never retries, and none of its publishes is pending. Does not wait.
        """
        done = [place for place in self._numbered if finished(place[1])]
        self._numbered.difference_update(done)
        for queue, name in done:
            self._wire.post(("HDEL", self._keys(queue).publishers, name))

    def publish(self, publications: Sequence[Publication]) -> list[int]:
        """Store *publications* in one round trip; return the outcome of each.

        Adjacent messages of one publisher for the same queue and route are stored in one atomic
        step of at most 200. Earlier posts finish first: a queue keeps the order of its publishers.
        """
        if self._has_posted:
            self._has_posted = False
            self._wire.wait_for_replies()
        if len(publications) == 1 and not publications[0].logged:
            publication = publications[0]
            command = self._single_command(publication, publication.low_water)
            outcomes: list[int] = self._wire.call(command, scripts.PUBLISH)
            if outcomes[1:] or self.partitions:
                outcomes = self._outcomes(publications, outcomes)
            if (publication.queue, publication.publisher) in self._kept:
                return outcomes
        else:
            groups = list(alike(publications))
            replies = self._wire.exchange([self._publish_command(items) for items in groups])
            outcomes = self._outcomes_of(groups, replies)
        self._note_kept(publications, outcomes)
        return outcomes

    def _outcomes(self, items: Sequence[Publication], reply: list[int]) -> list[int]:
        """Return the outcomes of *items*, and record the partitions that the reply reports."""
        queue = items[0].queue
        reported = reply.pop() if len(reply) > len(items) else None
        if reported is None and not self.partitions:
            return reply
        own = queue_of(queue)
        if reported is not None and (own == queue or own not in self.partitions):
            self.partitions[own] = reported
        elif reported != self.partitions.get(own):
            # Only the queue's own partition knows the number, and is asked next.
            self.partitions.pop(own, None)
        return reply

    def _outcomes_of(
        self, groups: Sequence[Sequence[Publication]], replies: Sequence[list[int]]
    ) -> list[int]:
        return [
            outcome
            for items, reply in zip(groups, replies, strict=True)
            for outcome in self._outcomes(items, reply)
        ]

    def post_publish(
        self, publications: Sequence[Publication], on_result: OnResult[list[int]]
    ) -> None:
        """Post the commands of :meth:`publish`."""
        self._has_posted = True
        groups = list(alike(publications))
        outcomes_of = partial(self._outcomes_of, groups)
        on_reply = gathered(len(groups), then(outcomes_of, on_result))
        for place, items in enumerate(groups):
            command, script = self._publish_command(items)
            self._wire.post(command, partial(on_reply, place), script)


def kept_ms(age_s: float, long: bool) -> int:
    """Return for how many ms from now to keep the numbers of a publisher of age *age_s*.

    *long*: keep them for the long time from the first number on. A retry must find its number, and
    so must a first try that the network has delayed.
    """
    return LONG_MS if long or age_s >= RENEW_EVERY_S else SHORT_MS
