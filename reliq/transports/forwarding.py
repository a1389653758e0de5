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
from ..spool.journal import numbers_in
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
        for queue, (own, number, publisher) in numbers_in(item.tried).items():
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

    def take_back(self, tag: PublishTag, queue: str) -> None:
        """Keep the number: it is a place in the journal."""

    def drop(self, numbers: dict[str, Number]) -> None:
        """Keep the numbers: they are places in the journal."""


def forward(
    journal: Journal, link: Link, redeclare: Redeclare, options: Options, stopped: Stopped
) -> Iterator[int]:
    """Forward what *journal* holds over *link*; yield how many, step by step.

    Nothing where another process does. Raises ReliqError; what was not forwarded stays.
    """
    if not journal.exists or journal.is_empty():
        return
    with journal.forwarding() as mine:
        if not mine:
            return
        store = link.store
        logger.warning("forwarding what is in %s to %s", journal, store.broker)
        store.keeps_long = True
        _declare_all(journal, store)
        total = after = 0
        data = store.broker_id()
        confirm = by_default(options)
        if confirm.level == "none":
            confirm = confirm._replace(level="accepted")
        while not stopped():
            items = journal.take(after, store.broker, data)
            if not items:
                break
            after = items[-1].id
            count = _forward(journal, link, redeclare, items, data, confirm)
            total += count
            yield count
        if journal.is_empty():
            logger.warning("%s is empty: %d messages forwarded", journal, total)


def _declare_all(journal: Journal, store: Store) -> None:
    """Declare what publishers have declared; what exists with other arguments stays as it is."""
    for kind, name, body in journal.declarations():
        if kind == "exchange":
            store.declare_exchange(name, body)
        elif kind == "queue":
            arguments, meta = unpack(body)
            declare(store, name, arguments, meta)
        else:
            queue, binding = unpack(body)
            store.bind(name, bound=True, bindings=[binding], queue=queue, present=True)


def _forward(
    journal: Journal,
    link: Link,
    redeclare: Redeclare,
    items: Sequence[Spooled],
    data: str,
    confirm: Wanted,
) -> int:
    store, now = link.store, int(time() * 1000)
    numbers = _Numbers(journal.publisher(), journal.lowest())
    entries: dict[int, Entry] = {}
    expired, doubtful = [], 0
    for item in items:
        waited_ms = max(now - item.stored_ms, 0)
        delay_ms = max(item.delay_ms - waited_ms, 0)
        overdue_ms = max(waited_ms - item.delay_ms, 0)
        if 0 <= item.ttl_ms <= overdue_ms:
            expired.append(item.id)
            continue
        if _is_doubtful(item, store.broker, data, now):
            doubtful += 1
        ttl_ms = item.ttl_ms if item.ttl_ms < 0 else item.ttl_ms - overdue_ms
        entry = Entry(_outgoing(item, delay_ms, ttl_ms, confirm))
        entry.tag = numbers.tag(item)
        entries[item.id] = entry
    full: Any = ()
    if entries:
        _, full = send(link, list(entries.values()), redeclare)
    if full:
        logger.warning(
            "%s: queue %s is full and rejects: %d messages stay in the spool; add consumers, or "
            "raise its limit",
            *(journal, ", ".join(sorted({repr(queue_of(one.queue)) for one in full})), len(full)),
        )
    for entry in entries.values():
        if not entry.reached:
            logger.warning(
                "%s: no queue for a message to exchange %r with routing key %r: it is dropped",
                *(journal, entry.item.exchange, entry.item.routing_key),
            )
    if doubtful:
        logger.warning(
            "%s: %d messages may be stored twice: another broker, or the lost data of this one, "
            "may have had them",
            *(journal, doubtful),
        )
    stored = [place for place, entry in entries.items() if entry.reached and not entry.full]
    dropped = [place for place, entry in entries.items() if not entry.reached]
    journal.done(
        [*stored, *dropped, *expired],
        forwarded=len(stored),
        dropped=len(dropped),
        expired=len(expired),
        doubtful=doubtful,
    )
    return len(stored)


def _is_doubtful(item: Spooled, broker: str, data: str, now: int) -> bool:
    """Whether *item* may be stored where its number does not tell."""
    if item.broker is None:
        return False
    if item.broker != broker or now - (item.sent_ms or now) > LONG_MS:
        return True
    return item.data is not None and item.data != data


def _outgoing(item: Spooled, delay_ms: int, ttl_ms: int, confirm: Wanted) -> Outgoing:
    return Outgoing(
        item.exchange,
        item.routing_key,
        item.envelope,
        item.rank,
        delay_ms,
        ttl_ms,
        confirm,
        {},
        item.creates,
        item.partition_key,
    )
