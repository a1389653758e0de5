"""Forwarding: what a spool holds goes to a broker, in order, each message once.

Each publish has a number there: that of an earlier try whose reply was lost, or its place in the
journal under the spool's own name. So whoever is killed in between, several who forward, and
replies that are lost end in one stored message. It is removed from the journal last.
"""

from __future__ import annotations

import logging
from time import time
from typing import TYPE_CHECKING, Any, cast

from ..message.delivery_tag import new_tag
from ..message.envelope import unpack
from ..message.queue_names import queue_of
from ..routing.partitions import declare
from ..routing.publish_ids import Number, PublishTag
from ..store.limits import LONG_MS
from .confirming import Wanted, by_default
from .outgoing import Outgoing
from .sending import Entry, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..options import Options
    from ..routing.publish_ids import Publisher
    from ..spool.journal import Journal, Spooled
    from ..store.protocol import Store
    from .link import Link

    Redeclare = Callable[[str, Store], bool]
    Stopped = Callable[[], bool]

logger = logging.getLogger("reliq")


class _Numbers:
    """The numbers of what a journal holds, where a process's own publishes have the process's."""

    def __init__(self, publisher: str, lowest: int) -> None:
        self._publisher = publisher
        self._lowest = lowest
        self._of: dict[str, int] = {}

    def tag(self, item: Spooled) -> PublishTag:
        """Return the tag of *item*: the same numbers on every try."""
        tag = PublishTag(item.tag)
        tag.numbers, tag.places, tag.turned_away = {}, {}, set()
        tag.publisher = cast("Publisher", self)
        self._of[tag] = item.id
        tried = {} if item.tried is None else unpack(item.tried)
        for queue, (own, number, publisher) in tried.items():
            tag.numbers[queue] = Number(own, number, 0, publisher, item.broker or "", True)
            tag.places[queue_of(queue)] = queue
        return tag

    def number(self, tag: PublishTag, queue: str, rank: int, broker: str = "") -> Number:
        """Return the message's identity in *queue*; see ``Publisher.number``."""
        known = tag.numbers.get(queue)
        if known is None:
            own = str(tag) if not tag.numbers else new_tag(rank)
            known = Number(own, self._of[tag], self._lowest, self._publisher, broker)
            tag.numbers[queue] = known
        return known

    def keep(self, *_: Any) -> None:
        """Keep the numbers: they are places in the journal."""

    take_back = drop = keep


def forward(
    journal: Journal, link: Link, redeclare: Redeclare, options: Options, stopped: Stopped
) -> Iterator[int]:
    """Forward what *journal* holds over *link*; yield how many, step by step.

    Nothing where another process does. Raises ReliqError; what was not forwarded stays.
    """
    if not journal.exists or journal.is_empty():
        return
    store = link.store
    store.keeps_long = True
    confirm = by_default(options)
    if confirm.level == "none":
        confirm = confirm._replace(level="accepted")
    with journal.forwarding() as mine:
        if not mine:
            return
        logger.warning("forwarding what is in %s to %s", journal, store.broker)
        _declare_all(journal, store)
        total = after = 0
        data = store.broker_id()
        while not stopped():
            items, publisher, lowest = journal.take(after, store.broker, data)
            if not items:
                break
            numbers, after = _Numbers(publisher, lowest), items[-1].id
            counts = _Step(journal, store.broker, data, items).forward(
                link, redeclare, numbers, confirm
            )
            total += counts
            yield counts
        if journal.is_empty():
            logger.warning("%s is empty: %d messages forwarded", journal, total)


def _declare_all(journal: Journal, store: Store) -> None:
    """Declare what publishers have declared; what exists with other arguments stays as it is."""
    for kind, name, body in journal.declarations():
        if kind == "exchange":
            store.declare_exchange(name, body)
        elif kind == "queue":
            declare(store, name, *unpack(body))
        else:
            queue, binding = unpack(body)
            store.bind(name, bound=True, bindings=[binding], queue=queue, present=True)


class _Step:
    """Some publishes of a journal on their way to a broker."""

    def __init__(self, journal: Journal, broker: str, data: str, items: Sequence[Spooled]) -> None:
        self._journal = journal
        self._place = (broker, data)
        self._items = items
        self._now = int(time() * 1000)

    def forward(self, link: Link, redeclare: Redeclare, numbers: _Numbers, confirm: Wanted) -> int:
        """Send them, and remove from the journal what needs no more; return how many are stored."""
        entries: dict[int, Entry] = {}
        for item in self._items:
            found = self._outgoing(item, confirm)
            if found is not None:
                entries[item.id] = Entry(found)
                entries[item.id].tag = numbers.tag(item)
        _, full = send(link, list(entries.values()), redeclare) if entries else ((), ())
        stored = [place for place, entry in entries.items() if entry.reached and not entry.full]
        dropped = {place: e.item for place, e in entries.items() if not e.reached}
        expired = [item.id for item in self._items if item.id not in entries]
        doubtful = sum(item.id in entries and self._is_doubtful(item) for item in self._items)
        for lost in dropped.values():
            self._warn(
                "no queue for a message to exchange %r with routing key %r: it is dropped",
                *(lost.exchange, lost.routing_key),
            )
        for queue in sorted({queue_of(one.queue) for one in full}):
            self._warn("queue %r is full and rejects: messages for it stay in the spool", queue)
        if doubtful:
            self._warn(
                "%d messages may be stored twice: another broker, or the lost data of this one, "
                "may have had them",
                doubtful,
            )
        counts = {"forwarded": len(stored), "dropped": len(dropped), "expired": len(expired)}
        self._journal.done([*stored, *dropped, *expired], doubtful=doubtful, **counts)
        return len(stored)

    def _warn(self, text: str, *args: object) -> None:
        logger.warning(f"%s: {text}", self._journal, *args)  # noqa: G004 - a constant

    def _outgoing(self, item: Spooled, confirm: Wanted) -> Outgoing | None:
        """Return *item* as it is to be sent now; None where its TTL has ended."""
        waited_ms = max(self._now - item.stored_ms, 0)
        delay_ms = max(item.delay_ms - waited_ms, 0)
        overdue_ms = max(waited_ms - item.delay_ms, 0)
        if 0 <= item.ttl_ms <= overdue_ms:
            return None
        ttl_ms = item.ttl_ms if item.ttl_ms < 0 else item.ttl_ms - overdue_ms
        route = (item.exchange, item.routing_key, item.envelope, item.rank)
        return Outgoing(*route, delay_ms, ttl_ms, confirm, {}, item.creates, item.partition_key)

    def _is_doubtful(self, item: Spooled) -> bool:
        """Whether *item* may be stored where its number does not tell."""
        broker, data = self._place
        if item.broker is None or item.sent_ms is None:
            return False
        lost = item.data is not None and item.data != data
        return lost or item.broker != broker or self._now - item.sent_ms > LONG_MS
