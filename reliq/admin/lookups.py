"""The part of the Inspector for pages: queries with bounded cost on large queues."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, NotFound
from ..message.delivery_tag import is_tag
from ..values.history import PER_BLOCK, thinned
from ..values.limits import HISTORY_BLOCKS, MINUTE_MS
from .dead_letter_choice import DeadLetterGroups, added, fingerprint
from .partitions import parts_of
from .views import Message, MessageDetails, details, gone, of_stored
from .walking import Search, by_tag, ground, search, walk

if TYPE_CHECKING:
    from ..values.history import Snapshot
    from ..values.protocol import Store

KEPT_MS = HISTORY_BLOCKS * PER_BLOCK * MINUTE_MS
"""The period of a queue's history: 72 hours."""
_MOST_POINTS = 1000
_NEVER_MS = 2**53
SCANS = 20_000
"""Messages examined by one call by default, which takes 0.1 to 0.2 s."""


class Lookups:
    """Queries of one broker whose steps take at most a few ms each, whatever the queue's size.

    Long queries run in parts: a call examines at most *looks* messages. Its result has ``looked``,
    the messages examined by all calls so far, and their ``total``.
    """

    _store: Store

    def history(self, queue: str, since_ms: int | None = None, points: int = 360) -> list[Snapshot]:
        """Return the history of *queue* since *since_ms* (broker's clock), oldest first.

        It has one snapshot per minute, for 72 hours, or at most *points* that cover several
        minutes each. A snapshot has the messages at its end, and the numbers published, delivered
        and so on during it (divide by ``span_ms`` for a rate). Periods without a consumer of this
        broker are missing, and so are temporary queues. Raises NotFound and ConfigurationError.
        """
        if points < 1:
            raise ConfigurationError(f"expected points to be at least 1, got: {points}")
        names = parts_of(self._store, queue)
        now_ms = self._store.now_ms()
        since_ms = max(now_ms - KEPT_MS if since_ms is None else since_ms, now_ms - KEPT_MS)
        minutes = max(now_ms // MINUTE_MS - since_ms // MINUTE_MS, 1)
        # A period that began before since_ms counts too, so there may be one point too many.
        width = -(-minutes // points) * MINUTE_MS
        parts = [self._store.reads.history(name, since_ms, now_ms) for name in names]
        return thinned(parts, width)[-points:]

    def due(self, queue: str, every_s: float = 60.0, points: int = 60) -> list[int]:
        """Return the numbers of delayed messages of *queue* due in each period of *every_s*.

        The list has *points* numbers, the first including messages already due, and one more for
        all later messages. Raises NotFound and ConfigurationError.
        """
        if not (every_s > 0 and 1 <= points <= _MOST_POINTS):
            raise ConfigurationError(
                f"expected every_s to be above 0, and 1 to {_MOST_POINTS} points: "
                f"{every_s!r}, {points!r}"
            )
        names = parts_of(self._store, queue)
        now_ms = self._store.now_ms()
        edges = [now_ms + int(1000 * every_s * point) for point in range(1, points + 1)]
        ends = [self._store.reads.count_due(name, [*edges, _NEVER_MS]) for name in names]
        totals = [sum(counts) for counts in zip(*ends, strict=True)]
        return [max(end - begin, 0) for begin, end in pairwise([0, *totals])]

    def message(self, queue: str, name: str, looks: int = SCANS) -> MessageDetails:
        """Return the details of one message of *queue*, by its delivery tag or its id.

        A tag is looked up directly; a missing message has the state ``gone``. An id (of a Celery
        task, or the message id) is searched among the first *looks* messages. Raises NotFound for
        an unknown queue, or if no message with the id was found.
        """
        names = parts_of(self._store, queue)
        now_ms = self._store.now_ms()
        tag = name
        if not is_tag(name):
            result = search(
                self._store, names, lambda item: item.id == name, 1, looks, None, contains=name
            )
            if not result.found:
                raise NotFound(
                    f"no message with the id {name!r} in queue {queue!r}, among "
                    f"{result.looked} of {result.total}"
                )
            tag = result.found[0].tag
        for partition in names:
            located = self._store.reads.locate(partition, tag)
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
        looks: int = SCANS,
        cursor: str | None = None,
    ) -> Search:
        """Search *queue*, or all queues, for messages with *text* in their task's name or their id.

        A delivery tag is looked up instead. There is no index of ids: the broker examines up to
        *looks* messages, and ``Search.cursor`` continues from there. New messages may be missed,
        and queues on unreachable nodes are omitted. Raises NotFound and ConfigurationError.
        """
        if not text or limit < 1 or looks < 1:
            raise ConfigurationError("expected a text to search, and limit and looks of at least 1")
        store = self._store
        names = store.reads.measure_all().asked if queue is None else parts_of(self._store, queue)
        if is_tag(text):
            return by_tag(store, names, text)

        return search(
            store,
            names,
            lambda message: text in (message.task or "") or text in (message.id or ""),
            limit,
            looks,
            cursor,
            contains=text,
        )

    def held_by(
        self, consumer: str, *, limit: int = 20, looks: int = SCANS // 4, cursor: str | None = None
    ) -> Search:
        """Return the messages held by *consumer*, an id of the register, as :meth:`find` does.

        Queue by queue, by the end of the leases. The consumer of a message has the number of its
        connection after a slash, which is ignored. Raises NotFound for an unknown consumer.
        """
        consumer = consumer.partition("/")[0]
        known = [item for item in self._store.reads.consumers() if item.id == consumer]
        if not known:
            raise NotFound(f"no consumer {consumer!r}")
        return search(
            self._store,
            known[0].queues,
            lambda message: (message.consumer or "").startswith(f"{consumer}/"),
            limit,
            looks,
            cursor,
            places=("unacked",),
        )

    # -- dead letters by cause

    def dead_letter_groups(
        self, queue: str, before: DeadLetterGroups | None = None, looks: int = SCANS // 4
    ) -> DeadLetterGroups:
        """Count up to *looks* dead letters of *queue* by task, reason and exception.

        With *before*, the result of an earlier call, it continues from there; ``cursor`` is None
        when all are counted. Raises NotFound.
        """
        names = parts_of(self._store, queue)
        if before is not None and before.cursor is None:
            return before
        groups, counted, start = [], 0, None
        if before is not None:
            groups, counted, start = before.groups, before.counted, before.cursor
        now_ms = self._store.now_ms()
        through, total = ground(self._store, names, ("dead",))
        after = None
        for _, page, after in walk(self._store, through, start, looks):  # noqa: B007
            messages = [of_stored(queue, "dead", item, now_ms) for item in page.items]
            groups, counted = added(groups, messages), counted + page.looked
        total = max(total, counted) if after else counted
        return DeadLetterGroups(queue, groups, counted, total, after)

    def dead_letters_of_group(
        self,
        queue: str,
        group: str,
        *,
        limit: int = 20,
        looks: int = SCANS // 4,
        cursor: str | None = None,
    ) -> Search:
        """Return dead letters of one *group*, a fingerprint, as :meth:`find` does.

        Oldest first; in a partitioned queue, partition by partition.
        """

        def fits(message: Message) -> bool:
            known = fingerprint(message.task, message.reason or "", message.error or "")
            return known == group

        names = parts_of(self._store, queue)
        return search(self._store, names, fits, limit, looks, cursor, places=("dead",))
