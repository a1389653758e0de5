"""Outgoing: an encoded message, the confirmation that it waits for, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import MessageRefused
from ..message.delivery_tag import new_tag
from ..message.queue_names import partition_names, queue_of
from ..options import CONFIRMS, RULES
from ..values.values import DUPLICATE, FULL, Publication, Wanted
from .publish_ids import PUBLISHER, Number
from .routes import log_of
from .spread import SPREAD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..errors import BrokerUnavailable
    from ..options import Confirm, Options
    from ..values.protocol import Store
    from .publish_ids import PublishTag
    from .routes import Routes

ACCEPTED = Wanted("accepted", 0, 1)
"""The broker has stored the message."""


def by_default(options: Options) -> Wanted:
    """Return the confirmation from the options."""
    return Wanted(options.confirm, options.confirm_replicas, _ms(options.confirm_timeout))


def wanted(default: Wanted, properties: dict[str, Any], timeout_s: Any) -> Wanted:
    """Return the confirmation of one message; raise MessageRefused before anything is stored.

    *timeout_s* is the ``confirm_timeout`` of Kombu's ``Producer.publish``.
    """
    level = properties.get("confirm")
    if level is None and timeout_s is None:
        return default
    if level is not None and level not in CONFIRMS:
        raise MessageRefused(
            f"expected confirm to be one of {', '.join(map(repr, CONFIRMS))}, got: {level!r}; "
            "nothing was stored"
        )
    timeout_ms = default.timeout_ms
    if timeout_s is not None:
        expected, check = RULES["confirm_timeout"]
        try:
            timeout_ms = _ms(check(timeout_s))
        except (TypeError, ValueError) as exc:
            raise MessageRefused(
                f"expected confirm_timeout to be {expected}, got: {timeout_s!r}; nothing was stored"
            ) from exc
    return Wanted(level or default.level, default.replicas, timeout_ms)


def require(wish: Wanted, store: Store) -> None:
    """Raise BrokerRefused if the broker can never confirm so; nothing is stored yet."""
    if not wish.by_storing:
        store.confirmer.require_confirm(wish.level)


def together(wishes: Iterable[Wanted]) -> list[Wanted]:
    """Merge *wishes* into one confirmation for each level, with its longest timeout."""
    by_level: dict[Confirm, Wanted] = {}
    for wish in wishes:
        known = by_level.get(wish.level)
        if known is None or known.timeout_ms < wish.timeout_ms:
            by_level[wish.level] = wish
    return [by_level[level] for level in CONFIRMS if level in by_level]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


@dataclass(slots=True, eq=False)
class Outgoing:
    """One message to be sent."""

    exchange: str
    routing_key: str
    envelope: bytes
    rank: int
    delay_ms: int = 0
    ttl_ms: int = -1
    confirm: Wanted = ACCEPTED
    headers: dict[str, Any] = field(default_factory=dict)
    create: bool = True
    """Whether it creates its queue if that does not exist."""
    key: str | None = None
    """Its ``x-partition-key``: messages with the same key stay in order."""
    since: float | None = None
    """Start of the delay, by this process's monotonic clock; None: now."""
    tag: PublishTag | None = None
    """The tag with its publish numbers, which identify retries; None: it is never retried."""
    spreads: bool = True
    """Whether it may go to any partition of its queue; otherwise to partition 0."""
    stored: dict[str, Publication] = field(default_factory=dict)
    """By queue, the copies that the last :func:`send` stored, or found already stored."""
    refused: dict[str, int] = field(default_factory=dict)
    """By queue, the outcome of permanently refused copies: FULL or NO_QUEUE."""
    transient: bool = False
    """Whether consumers may read it in the log of its exchange instead of in their queues."""
    spooled: bool = False
    """Whether a spool stored it instead of a broker."""

    @property
    def reached(self) -> bool:
        """Whether a queue or a spool stored it, or a full queue refused it."""
        return bool(self.stored) or self.spooled or self.full

    @property
    def full(self) -> bool:
        """Whether a full queue refused it."""
        return FULL in self.refused.values()

    @property
    def delay_left_ms(self) -> int:
        """The remaining delay."""
        if self.since is None:
            return self.delay_ms
        return max(self.delay_ms - int((monotonic() - self.since) * 1000), 0)

    def note(self, sent: Publication, outcome: int) -> bool:
        """Record the outcome of one copy; return False if it may be sent again."""
        if outcome >= DUPLICATE:
            self.stored[queue_of(sent.queue)] = sent
        elif outcome == FULL:
            self.refused[queue_of(sent.queue)] = FULL
        else:
            return False
        return True

    def like(self, envelope: bytes, headers: dict[str, Any]) -> Outgoing:
        """Return an unsent message that differs only in envelope and headers."""
        return Outgoing(
            exchange=self.exchange,
            routing_key=self.routing_key,
            envelope=envelope,
            rank=self.rank,
            delay_ms=self.delay_ms,
            ttl_ms=self.ttl_ms,
            confirm=self.confirm,
            headers=headers,
            create=self.create,
            key=self.key,
            since=self.since,
        )

    def publication(
        self, queue: str, store: Store, version: bytes = b"", *, stays: bool = False
    ) -> Publication:
        """Return its copy for *queue* at *store*; *stays*: see :meth:`.Spread.place`."""
        if self.transient and queue == log_of(self.exchange):
            return Publication(
                queue=queue,
                tag=new_tag(self.rank),
                envelope=self.envelope,
                rank=self.rank,
                publisher=PUBLISHER.id,
                exchange=self.exchange,
                version=version,
                logged=True,
            )
        tag, place = self.tag, queue
        if self.spreads and (store.partitions or self.key is not None or (tag and tag.places)):
            place = SPREAD.place(store, queue, tag, self.key, stays=stays)
        if tag is not None:
            known = tag.publisher.number(tag, place, store.broker)
        else:
            known = Number(new_tag(self.rank, self.headers), 0, 0, PUBLISHER.id, store.broker)
        return Publication(
            queue=place,
            tag=known.tag,
            envelope=self.envelope,
            rank=self.rank,
            publisher=known.publisher,
            number=known.number,
            low_water=known.low_water,
            delay_ms=self.delay_left_ms if self.delay_ms else 0,
            ttl_ms=self.ttl_ms,
            exchange=self.exchange,
            version=version,
            moved=known.moved,
            # Another broker may have stored it, so it must use the same partition.
            create=self.create if place == queue else known.unconfirmed,
        )

    def goes_elsewhere(self, store: Store, error: BrokerUnavailable) -> bool:
        """Whether a retry at the same broker goes to a partition of a reachable node."""
        queue = self.routing_key
        count = store.partitions.get(queue, 1)
        if self.exchange or self.key is not None or count == 1 or not error.untouched:
            return False
        return any(not store.is_unreachable(name) for name in partition_names(queue, count))

    def route(self, routes: Routes) -> tuple[tuple[str, ...], bytes]:
        """Return its target queues by the cached bindings, and their version."""
        if not self.exchange:
            return (self.routing_key,), b""
        table = routes.cached(self.exchange)
        if self.transient and table.readers:
            return table.lookup_transient(self.routing_key), table.version or b""
        return table.lookup(self.routing_key), table.version or b""
