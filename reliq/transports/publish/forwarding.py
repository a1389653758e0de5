"""Forwarding: send the messages of a spool to a broker, in order, each once.

Each publish has a number at the broker: the number of an earlier attempt whose reply was lost, or
its place in the journal under a name of the spool. So a kill in between, several forwarders, and
lost replies result in one stored message. The journal removes a message last.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from ...errors import BrokerRefused, BrokerUnavailable, logger
from ...message.delivery_tag import tag_like
from ...message.envelope import unpack
from ...message.queue_names import queue_of
from ...routing.outgoing import Outgoing, by_default
from ...routing.partitions import declare
from ...routing.publish_ids import Number, publish_tag
from ...routing.sending import send
from ...values.protocol import Attempt, partly_reachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...routing.publish_ids import PublishTag
    from ...spool.journal import Journal, Taken
    from ...values.protocol import Store
    from ...values.values import Wanted
    from ..base import Transport


def forward(
    journal: Journal,
    broker: Transport,
    stopped: Callable[[], bool] = bool,
    on_reason: Callable[[str], None] | None = None,
) -> int:
    """Forward the messages of *journal* to *broker*; return how many were stored.

    Does nothing while another process forwards. *said* gets the reason why messages are left.
    Raises ReliqError; other messages stay.
    """
    if not journal.holds:
        return 0
    store, total, after, held = broker.link.store, 0, 0, set[str]()
    store.keeps_long, data = True, store.broker_id()
    while not (after and stopped()):  # forward at least some before the process forks again
        items, lowest = journal.take(after, store.broker, data)
        if not items:
            break
        if not after:
            for kind, name, body in journal.rows("SELECT kind, name, body FROM declarations"):
                _declare(kind, name, body, store)
        if not journal.reported:
            logger.warning("forwarding messages from %s to %s", journal, store.broker)
            journal.reported = True
        after = items[-1][0]
        total += _forward_some(journal, broker, items, lowest, held)
    if held:
        raise BrokerUnavailable(
            f"{store.broker}: {total} forwarded; the node of {', '.join(map(repr, sorted(held)))} "
            "is not reachable, so its messages stay in the spool"
        )
    left = journal.holds
    if left and on_reason is not None:
        on_reason(journal.reason(data, tried=after > 0))
    if journal.reported and not left:
        logger.warning("%s is empty: %d messages forwarded by this process", journal, total)
        journal.reported = False
    return total


def _declare(kind: str, name: str, body: bytes, store: Store) -> None:
    """Declare an entity of a publisher; keeps an existing one with other arguments."""
    try:
        with Attempt(store):
            if kind == "exchange":
                store.declare_exchange(name, body)
            elif kind == "queue":
                declare(store, name, *unpack(body))
            else:
                queue, binding = unpack(body)
                store.bind(name, bound=True, bindings=[binding], queue=queue, present=True)
    except BrokerRefused as exc:  # continue with messages for other entities
        logger.warning("%s %r is not declared: %s", kind, name, exc)


@dataclass(frozen=True)
class _Place:
    """A place in a journal; it numbers a publish as a process numbers its own publishes."""

    publisher: str
    place: int
    lowest: int

    def number(self, tag: PublishTag, queue: str, broker: str = "") -> Number:
        """Return the message's identity in *queue*; see ``Publisher.number``."""
        if queue not in tag.numbers:
            own = tag_like(tag) if tag.numbers else str(tag)
            tag.numbers[queue] = Number(own, self.place, self.lowest, self.publisher, broker)
        return tag.numbers[queue]

    def take_back(self, *_: object) -> None:
        """Keep the numbers, because the place stays the same."""


def _entry(item: Taken, place: _Place, confirm: Wanted) -> Outgoing | None:
    """Return *item* with its numbers, ready to send; None if its TTL has ended."""
    exchange, routing_key, stored_ms, message = item[1:5]
    own, envelope, rank, delay_ms, ttl_ms, creates, key, tried = unpack(message)
    waited_ms = max(int(time() * 1000) - stored_ms, 0)
    overdue_ms = max(waited_ms - delay_ms, 0)
    if 0 <= ttl_ms <= overdue_ms:
        return None
    entry = Outgoing(
        exchange=exchange,
        routing_key=routing_key,
        envelope=envelope,
        rank=rank,
        delay_ms=max(delay_ms - waited_ms, 0),
        ttl_ms=ttl_ms if ttl_ms < 0 else ttl_ms - overdue_ms,
        confirm=confirm,
        create=creates,
        key=key,
    )
    entry.tag = tag = publish_tag(own, place)
    for queue, (its, number, publisher) in tried.items():
        tag.numbers[queue] = Number(its, number, 0, publisher, "", True)
        tag.places[queue_of(queue)] = queue
    return entry


def _forward_some(
    journal: Journal, broker: Transport, items: list[Taken], lowest: int, held: set[str]
) -> int:
    """Send *items*, remove settled ones from the journal, and return how many are stored.

    *held*: queues whose node is unreachable; skipping all their messages keeps their order.
    """
    confirm = by_default(broker.options)
    confirm = confirm._replace(level="accepted") if confirm.level == "none" else confirm
    made = {row[0]: _entry(row, _Place(row[6], row[0], lowest), confirm) for row in items}
    expired = [place for place, entry in made.items() if entry is None]
    entries = {place: entry for place, entry in made.items() if entry is not None}
    _send(broker, entries, held)
    stored = [place for place, entry in entries.items() if entry.reached and not entry.full]
    dropped = [place for place, entry in entries.items() if not entry.reached]
    doubtful = sum(item[0] in stored for item in items if item[5])
    for place in dropped:
        logger.warning(
            "%s: dropped a message to exchange %r with routing key %r: it has no queue",
            *(journal, entries[place].exchange, entries[place].routing_key),
        )
    if doubtful:
        logger.warning(
            "%s: %d messages may be stored twice: another broker, or the lost data of this one, "
            "may have contained them",
            *(journal, doubtful),
        )
    settled = {*stored, *dropped, *expired}
    gone = [item for item in items if item[0] in settled]
    journal.done(gone, expired=len(expired), doubtful=doubtful)
    return len(stored)


def _send(broker: Transport, entries: dict[int, Outgoing], held: set[str]) -> None:
    """Send *entries*; first remove those whose queues wait for a node."""
    link, redeclare = broker.link, broker.declarations.redeclare
    while True:
        queues = set[str]()
        for place, entry in list(entries.items()):
            its = entry.route(link.routes)[0]
            if held.intersection(its) or any(map(link.store.is_unreachable, its)):
                held.update(its)
                del entries[place]
            queues.update(its)
        try:
            send(link.store, link.routes, list(entries.values()), redeclare)
        except BrokerUnavailable:
            if not partly_reachable(link.store) or not any(
                map(link.store.is_unreachable, queues - held)
            ):
                raise
        else:
            return
