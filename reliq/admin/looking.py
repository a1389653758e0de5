"""The part of the Inspector that pages are made from: bounded looks at what may be very much."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, NotFound
from ..routing.partitions import names_of
from ..store.history import PER_BLOCK, thinned
from ..store.limits import HISTORY_BLOCKS, MINUTE_MS
from .dead_letter_choice import DeadLetterGroups, added, fingerprint
from .views import Message, MessageDetails, details, gone, of_stored
from .walking import Search, by_tag, ground, is_tag, require_queue, search, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store.history import Snapshot
    from ..store.protocol import Store

KEPT_MS = HISTORY_BLOCKS * PER_BLOCK * MINUTE_MS
"""For so long a queue's history is kept: 72 hours."""
_MOST_POINTS = 1000
_NEVER_MS = 2**53
LOOKS = 20_000
"""At so many messages one call looks by default: a tenth of a second or two."""


class Looking:
    """Looks at one broker that take no step longer than a few ms, whatever is in a queue.

    What would take long is done in part, and says so: *looks* is at how many messages a call
    looks at most, and ``looked`` of ``total`` how far it has come with those before it.
    """

    _store: Store

    def _partitions(self, queue: str) -> Sequence[str]:
        names = names_of(self._store, queue)
        require_queue(self._store, names[0])
        return names

    def history(self, queue: str, since_ms: int | None = None, points: int = 360) -> list[Snapshot]:
        """Return what was counted of *queue* since *since_ms* (broker's clock), oldest first.

        One snapshot a minute, for 72 hours, or at most *points*, each of as many minutes as it
        takes: messages as they were at the end of these, and in all of these published, delivered
        and so on (divide by ``span_ms`` for a rate). Times in which nobody consumed from this
        broker are missing, and temporary queues. Raises NotFound, and ConfigurationError.
        """
        if points < 1:
            raise ConfigurationError(f"expected points to be at least 1, got: {points}")
        names = self._partitions(queue)
        now_ms = self._store.now_ms()
        since_ms = max(now_ms - KEPT_MS if since_ms is None else since_ms, now_ms - KEPT_MS)
        minutes = max(now_ms // MINUTE_MS - since_ms // MINUTE_MS, 1)
        # A time that began before it counts too: one more than there is room for, perhaps.
        width = -(-minutes // points) * MINUTE_MS
        parts = [self._store.reads.history(name, since_ms, now_ms) for name in names]
        return thinned(parts, width)[-points:]

    def due(self, queue: str, every_s: float = 60.0, points: int = 60) -> list[int]:
        """Return how many delayed messages of *queue* fall due in each *every_s* from now on.

        *points* numbers, what is due already in the first of them; and one more: how many are due
        later. Raises NotFound, and ConfigurationError.
        """
        if not (every_s > 0 and 1 <= points <= _MOST_POINTS):
            raise ConfigurationError(
                f"expected every_s to be above 0, and 1 to {_MOST_POINTS} points: "
                f"{every_s!r}, {points!r}"
            )
        names = self._partitions(queue)
        now_ms = self._store.now_ms()
        edges = [now_ms + int(1000 * every_s * point) for point in range(1, points + 1)]
        ends = [self._store.reads.count_due(name, [*edges, _NEVER_MS]) for name in names]
        totals = [sum(counts) for counts in zip(*ends, strict=True)]
        return [max(end - begin, 0) for begin, end in pairwise([0, *totals])]

    def message(self, queue: str, name: str, looks: int = LOOKS) -> MessageDetails:
        """Return all that is known of one message of *queue*, by its delivery tag or its id.

        By a tag it is found at once, and where it is not there its state is ``gone``. By the id
        of a Celery task, or the message id, it is searched among the first *looks* messages.
        Raises NotFound where there is no such queue, or no message with that id was found.
        """
        names = self._partitions(queue)
        now_ms = self._store.now_ms()
        tag = name
        if not is_tag(name):
            found = search(
                self._store, names, lambda item: item.id == name, 1, looks, None, contains=name
            )
            if not found.found:
                raise NotFound(
                    f"no message with the id {name!r} in queue {queue!r}, among "
                    f"{found.looked} of {found.total}"
                )
            tag = found.found[0].tag
        for partition in names:
            located = self._store.reads.look_up(partition, tag)
            if located is not None:
                failures = self._store.reads.failures(partition)
                return details(partition, located, now_ms, failures)
        known = [item for partition in names for item in self._store.reads.failures(partition)]
        return gone(queue, tag, now_ms, known)

    def find(
        self,
        text: str,
        queue: str | None = None,
        *,
        limit: int = 20,
        looks: int = LOOKS,
        cursor: str | None = None,
    ) -> Search:
        """Search *queue*, or all queues, for messages with *text* in their task's name or their id.

        A delivery tag is looked up instead. There is no index of ids: up to *looks* messages are
        looked at, by the broker itself, and ``Search.cursor`` goes on from there. What comes to a
        queue meanwhile may be missed, and queues at a node that does not answer are left out.
        Raises NotFound, and ConfigurationError.
        """
        if not text or limit < 1 or looks < 1:
            raise ConfigurationError("expected a text to search, and limit and looks of at least 1")
        names = self._store.reads.told().queues if queue is None else self._partitions(queue)
        if is_tag(text):
            return by_tag(self._store, names, text)

        return search(
            self._store,
            names,
            lambda message: text in (message.task or "") or text in (message.id or ""),
            limit,
            looks,
            cursor,
            contains=text,
        )

    def held_by(
        self, consumer: str, *, limit: int = 20, looks: int = LOOKS // 4, cursor: str | None = None
    ) -> Search:
        """Return what *consumer*, an id of the register, holds, as :meth:`find` searches.

        In the order in which the leases end, one queue of its after the other. Raises NotFound
        where there is no such consumer.
        """
        known = [item for item in self._store.reads.consumers() if item.id == consumer]
        if not known:
            raise NotFound(f"no consumer {consumer!r}")
        return search(
            self._store,
            known[0].queues,
            # Behind the slash is the number of its connection.
            lambda message: (message.consumer or "").startswith(f"{consumer}/"),
            limit,
            looks,
            cursor,
            places=("unacked",),
        )

    # -- dead letters, by what they died of

    def dead_letter_groups(
        self, queue: str, before: DeadLetterGroups | None = None, looks: int = LOOKS // 4
    ) -> DeadLetterGroups:
        """Count the dead letters of *queue* by task, reason and exception, *looks* of them.

        With *before*, what an earlier call has returned, it goes on there; ``cursor`` is None when
        all were counted. Raises NotFound.
        """
        names = self._partitions(queue)
        if before is not None and before.cursor is None:
            return before
        groups, counted, start = [], 0, None
        if before is not None:
            groups, counted, start = before.groups, before.counted, before.cursor
        now_ms = self._store.now_ms()
        through, total = ground(self._store, names, ("dead",))
        after = None
        for _, found, after in walk(self._store, through, start, looks):  # noqa: B007
            messages = [of_stored(queue, "dead", item, now_ms) for item in found.items]
            groups, counted = added(groups, messages), counted + found.looked
        total = max(total, counted) if after else counted
        return DeadLetterGroups(queue, groups, counted, total, after)

    def dead_letters_of_group(
        self,
        queue: str,
        group: str,
        *,
        limit: int = 20,
        looks: int = LOOKS // 4,
        cursor: str | None = None,
    ) -> Search:
        """Return dead letters of one *group*, a fingerprint, as :meth:`find` searches.

        Oldest first. Of a queue that is divided, one partition after the other.
        """

        def fits(message: Message) -> bool:
            known = fingerprint(message.task, message.reason or "", message.error or "")
            return known == group

        names = self._partitions(queue)
        return search(self._store, names, fits, limit, looks, cursor, places=("dead",))
