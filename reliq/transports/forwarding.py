"""Forwarding: what a spool holds goes to a broker, in order, each message once.

Each publish has a number there: that of an earlier try whose reply was lost, or its place in the
journal under the spool's own name. So a kill in between, several forwarders, and lost replies
end in one stored message. It is removed from the journal last.
"""

from __future__ import annotations

import logging
import os
from time import time
from typing import TYPE_CHECKING

from ..errors import BrokerRefused
from ..message.delivery_tag import new_tag
from ..message.envelope import unpack
from ..message.queue_names import queue_of
from ..routing.confirming import by_default
from ..routing.outgoing import Outgoing
from ..routing.partitions import declare
from ..routing.publish_ids import Number, publish_tag
from ..routing.sending import send
from ..spool.journal import CERTAIN_MS, DECLARATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..options import Options
    from ..routing.confirming import Wanted
    from ..routing.publish_ids import PublishTag
    from ..spool.journal import Journal, Spooled
    from ..store.protocol import Store
    from .link import Link

    Redeclare = Callable[[str, Store], bool]

logger = logging.getLogger("reliq")


def forward(
    journal: Journal,
    link: Link,
    redeclare: Redeclare,
    options: Options,
    stopped: Callable[[], bool] = bool,
) -> int:
    """Forward what *journal* holds over *link*; return how many were stored.

    Nothing where another process does. Raises ReliqError; what was not forwarded stays.
    """
    if not journal.holds:
        return 0
    store, me, total, after = link.store, os.urandom(8).hex(), 0, 0
    store.keeps_long, data = True, store.broker_id()
    confirm = by_default(options)
    confirm = confirm._replace(level="accepted") if confirm.level == "none" else confirm
    try:
        while not (after and stopped()):  # some go, however soon the process forks again
            items, publisher, lowest = journal.take(me, after, store.broker, data)
            if not items:
                break
            for kind, name, body in () if after else journal.look(DECLARATIONS):
                _declare(kind, name, body, store)
            after = items[-1].id
            numbers = _Numbers(publisher, lowest)
            stored = _forward_some(journal, link, redeclare, items, numbers, data, confirm)
            if stored and not journal.told:
                logger.warning("forwarding what is in %s to %s", journal, store.broker)
                journal.told = True
            total += stored
    finally:
        journal.rest(me)
    if journal.told and not journal.holds:
        logger.warning("%s is empty: %d messages forwarded by this process", journal, total)
        journal.told = False
    return total


def _declare(kind: str, name: str, body: bytes, store: Store) -> None:
    """Declare what a publisher declared; what exists with other arguments stays as it is."""
    try:
        if kind == "exchange":
            store.declare_exchange(name, body)
        elif kind == "queue":
            declare(store, name, *unpack(body))
        else:
            queue, binding = unpack(body)
            store.bind(name, bound=True, bindings=[binding], queue=queue, present=True)
    except BrokerRefused as exc:  # messages for others go on
        logger.warning("%s %r is not declared: %s", kind, name, exc)


class _Numbers:
    """The numbers of what a journal holds, where a process's own publishes have the process's."""

    def __init__(self, publisher: str, lowest: int) -> None:
        self._publisher = publisher
        self._lowest = lowest
        self._of: dict[str, int] = {}

    def entry(self, item: Spooled, confirm: Wanted, now_ms: int) -> Outgoing | None:
        """Return *item* as it is sent now, with its numbers; None where its TTL has ended."""
        own, envelope, rank, delay_ms, ttl_ms, creates, key, tried = unpack(item.message)
        waited_ms = max(now_ms - item.stored_ms, 0)
        overdue_ms = max(waited_ms - delay_ms, 0)
        if 0 <= ttl_ms <= overdue_ms:
            return None
        times = (max(delay_ms - waited_ms, 0), ttl_ms if ttl_ms < 0 else ttl_ms - overdue_ms)
        route = (item.exchange, item.routing_key, envelope, rank)
        entry = Outgoing(*route, *times, confirm, {}, creates, key)
        entry.tag = tag = publish_tag(own, self)
        self._of[tag] = item.id
        for queue, (its, number, publisher) in tried.items():
            tag.numbers[queue] = Number(its, number, 0, publisher, item.broker or "", True)
            tag.places[queue_of(queue)] = queue
        return entry

    def number(self, tag: PublishTag, queue: str, rank: int, broker: str = "") -> Number:
        """Return the message's identity in *queue*; see ``Publisher.number``."""
        known = tag.numbers.get(queue)
        if known is None:
            own = new_tag(rank) if tag.numbers else str(tag)
            known = Number(own, self._of[tag], self._lowest, self._publisher, broker)
            tag.numbers[queue] = known
        return known

    def keep(self, *_: object) -> None:
        """Keep the numbers: they are places in the journal."""

    take_back = drop = keep


def _forward_some(
    journal: Journal,
    link: Link,
    redeclare: Redeclare,
    items: list[Spooled],
    numbers: _Numbers,
    data: str,
    confirm: Wanted,
) -> int:
    """Send *items*, and remove from the journal what needs no more; return how many are stored."""
    now, store = int(time() * 1000), link.store
    made = {item.id: numbers.entry(item, confirm, now) for item in items}
    entries = {place: entry for place, entry in made.items() if entry is not None}
    if entries:
        send(store, link.routes, list(entries.values()), redeclare)
    stored = [place for place, entry in entries.items() if entry.stored and not entry.full]
    dropped = [place for place, entry in entries.items() if not (entry.stored or entry.full)]
    expired = [place for place, entry in made.items() if entry is None]
    # Its number tells nothing elsewhere, in other data, or after a day.
    doubtful = sum(
        item.sent_ms is not None
        and item.id in stored
        and (
            now - item.sent_ms > CERTAIN_MS
            or (item.data != data if item.data else item.broker != store.broker)
        )
        for item in items
    )
    for item in items:
        if item.id in dropped:
            logger.warning(
                "%s: no queue for a message to exchange %r with routing key %r: it is dropped",
                *(journal, item.exchange, item.routing_key),
            )
    if doubtful:
        logger.warning(
            "%s: %d messages may be stored twice: another broker, or the lost data of this one, "
            "may have had them",
            *(journal, doubtful),
        )
    journal.done(doubtful, forwarded=stored, dropped=dropped, expired=expired)
    return len(stored)
