"""Batches: many messages in one round trip, each with every promise of a single publish.

What Kombu's ``Producer.batch()`` asks of a transport. A message is checked and
encoded when it is added, so that one that is refused spoils none of the others; it
is numbered and sent when the batch is flushed. A flush that failed keeps its
messages with their numbers: flushing again stores each once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kombu import exceptions

from ..errors import (
    BatchUncertain,
    BrokerTimeout,
    BrokerUnavailable,
    NotConfirmed,
    QueueFull,
    ReliqError,
    Unroutable,
    again,
)
from ..forks import OwnLock, here
from ..routing.publish_ids import PUBLISHER
from ..signals import emit_published, message_published
from ..store.values import DUPLICATE, FULL, STALE
from .confirming import together
from .outgoing import list_created, publications

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..routing.publish_ids import PublishTag
    from ..store.protocol import Store
    from ..store.values import Publication
    from .link import Link
    from .outgoing import Outgoing
    from .parts import Parts

_MOST_BYTES = 8 * 1024 * 1024
_SENT_AT_ONCE = 100
_TRIES = 5
_MOST_NAMED = 5


# Kombu 5.7 has an error for this; it is caught by that name too.
class _BatchUncertain(
    BatchUncertain,
    getattr(exceptions, "BatchPublishError", exceptions.KombuError),  # type: ignore[misc]
):
    __doc__ = BatchUncertain.__doc__


class Publisher(Protocol):
    """Who has batches: a channel."""

    closed: bool

    @property
    def transport(self) -> Parts:
        """What it publishes over."""

    def prepare(
        self,
        message: dict[str, Any],
        exchange: str = "",
        routing_key: str = "",
        confirm_timeout: float | None = None,
    ) -> Outgoing:
        """Check and encode *message*; raises MessageRefused. Nothing is sent."""

    def report_unroutable(self, exchange: str, routing_key: str) -> None:
        """Say once that nothing is bound for such messages, or raise Unroutable if asked to."""


class _Entry:
    """A message in the batch."""

    __slots__ = ("item", "reached", "stored", "tag")

    def __init__(self, item: Outgoing) -> None:
        self.item = item
        self.tag: PublishTag | None = None
        """Made when it is first sent; its numbers make it the same on every try."""
        self.reached = False
        """Whether some queue has it, or was too full to have it."""
        self.stored: dict[str, Publication] = {}
        """By queue, where somebody wants to be told."""

    def note(self, sent: Publication) -> None:
        """Note that a queue has it."""
        self.reached = True
        if message_published.receivers:
            self.stored[sent.queue] = sent


_NotStored: TypeAlias = "tuple[list[Outgoing], list[Publication]]"
"""Messages with no queue, and copies whose queue is full."""


class _Sending:
    """Publications on their way: some are stored while the next are made."""

    def __init__(self, store: Store) -> None:
        self.items: list[Publication] = []
        self._store = store
        self._posted = 0
        self._results: list[list[int] | ReliqError] = []

    def add(self, publications: list[Publication]) -> None:
        """Send them with those that follow, or now if they are enough for a call."""
        self.items += publications
        if len(self.items) - self._posted >= _SENT_AT_ONCE:
            self._store.post_publish(self.items[self._posted :], self._results.append)
            self._posted = len(self.items)

    def finish(self) -> list[int]:
        """Send the rest; return the outcome of each, or raise the first error."""
        rest = self.items[self._posted :]
        last = self._store.publish(rest) if rest else []
        self._store.wait_for_replies()
        outcomes: list[int] = []
        for result in self._results:
            if isinstance(result, ReliqError):
                raise again(result)
            outcomes += result
        return outcomes + last


class PublishBatch:
    """Messages of one channel, up to *max_size* copies or 8 MiB, until they are flushed.

    Thread-safe. A forked child starts with an empty one: what its parent has
    buffered the parent sends.
    """

    _lock = OwnLock(reentrant=True)

    def __init__(self, channel: Publisher, max_size: int) -> None:
        if isinstance(max_size, bool) or not isinstance(max_size, int) or max_size < 1:
            raise ValueError(f"expected max_size to be a whole number above 0, got: {max_size!r}")
        self.channel = channel
        self.max_size = max_size
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._process = here()
        self._new: list[_Entry] = []
        self._uncertain: list[_Entry] = []
        self._blind = False
        self._copies = self._bytes = 0

    # -- what Kombu calls

    def publish(
        self,
        message: dict[str, Any],
        exchange: str = "",
        routing_key: str = "",
        confirm_timeout: float | None = None,
        **_: Any,
    ) -> None:
        """Add *message*; when the batch is full, flush it.

        Raises MessageRefused, Unroutable where ``unroutable="error"`` asks for it,
        or BrokerRefused where the broker can never give the confirmation that is
        asked for, without touching what is in the batch. A batch that an earlier flush
        left uncertain is flushed first. Raises BatchUncertain when a flush failed,
        and says whether *message* is in the batch.
        """
        self._leave_parent()
        with self._lock:
            if self._closed:
                raise RuntimeError("the batch is closed")
            channel = self.channel
            item = channel.prepare(message, exchange, routing_key, confirm_timeout)
            if self._uncertain:
                self._flush("the message that was to be added now is not in it")
            simple = not item.exchange and item.confirm.by_storing
            copies = 1 if simple else self._copies_of(item)
            if not copies:
                channel.report_unroutable(item.exchange, item.routing_key)
                return
            size = copies * len(item.envelope)
            if self._new and (
                self._copies + copies > self.max_size or self._bytes + size > _MOST_BYTES
            ):
                self._flush("the message that was to be added now is not in it")
            self._new.append(_Entry(item))
            self._copies += copies
            self._bytes += size
            if self._copies >= self.max_size or self._bytes >= _MOST_BYTES:
                self._flush("the message that was added last is in it")

    def flush(self) -> None:
        """Store what is in the batch, and wait for its confirmation, once for all.

        One round trip as a rule. Where the connection was lost it tries once more
        over another one. Raises BatchUncertain, and keeps the messages: flushing
        again, also after the channel or the batch was closed, stores each once.
        Messages that were certainly not stored (QueueFull, Unroutable) are taken out,
        all others are flushed, and then it is raised. Not atomic as a whole.
        """
        self._leave_parent()
        with self._lock:
            self._flush("")

    def discard(self) -> None:
        """Drop what was never sent; what a failed flush left uncertain can still be flushed."""
        self._leave_parent()
        with self._lock:
            self._new = []
            self._copies = self._bytes = 0

    def close(self) -> None:
        """Take no more messages; drop what was never sent."""
        self.discard()
        self._closed = True

    # -- inside, under the lock

    def _leave_parent(self) -> None:
        if self._process != here():
            self._reset()

    def _copies_of(self, item: Outgoing) -> int:
        """Return how many queues *item* goes to; 1 while the broker cannot be asked.

        Raises BrokerRefused where it can never confirm what *item* asks for.
        """
        channel = self.channel
        if channel.closed or self._blind:
            return 1
        try:
            link = channel.transport.link
            item.confirm.require(link.store)
            if not item.exchange:
                return 1
            found = link.routes.cached(item.exchange).lookup(item.routing_key)
            if not found:  # what is known may be old
                found = link.routes.refresh(item.exchange).lookup(item.routing_key)
        except BrokerUnavailable:
            self._blind = True  # do not wait for it with each message: the flush will ask
            return 1
        return len(found)

    def _flush(self, remark: str) -> None:
        if not (self._new or self._uncertain):
            return
        self._uncertain += self._new
        self.discard()
        self._blind = False
        try:
            nowhere, full = self._send_surely()
        except ReliqError as exc:
            raise self._failure(exc, remark) from exc
        PUBLISHER.wait_for_replies(
            *[entry.tag for entry in self._uncertain if entry.tag is not None]
        )
        flushed, self._uncertain = self._uncertain, []
        if message_published.receivers:
            broker = self.channel.transport.link.store.broker
            for entry in flushed:
                if entry.stored:
                    stored, item = list(entry.stored.values()), entry.item
                    emit_published(broker, stored, item.headers, item.routing_key)
        self._report(nowhere, full)

    def _send_surely(self) -> _NotStored:
        """Send over the channel's connection or, where that is lost, over the session's own."""
        link = self.channel.transport.link
        if not self.channel.closed:
            try:
                return self._send(link)
            except (BrokerTimeout, NotConfirmed):
                raise  # a second try would only wait as long again
            except BrokerUnavailable:
                pass
        # What this channel declared it can repair over the other connection too.
        return self._send(link.over(link.session.spare_store()))

    def _send(self, link: Link) -> _NotStored:
        """Store every message and wait for its confirmation; return what found no place."""
        store = link.store
        wishes = together({entry.item.confirm for entry in self._uncertain})
        for wish in wishes:
            wish.require(store)
        stored: list[Publication] = []
        full: list[Publication] = []
        entries: Iterable[_Entry] = self._uncertain
        for _ in range(_TRIES):
            entries = self._send_once(link, entries, stored, full)
            if not entries:
                break
        for wish in wishes:
            wish.wait(store, stored)
        return [entry.item for entry in self._uncertain if not entry.reached], full

    def _send_once(
        self,
        link: Link,
        entries: Iterable[_Entry],
        stored: list[Publication],
        full: list[Publication],
    ) -> Iterable[_Entry]:
        """Send by the routes as they are known; return what has to be routed once more."""
        _, store, routes = link
        sending = _Sending(store)
        items = sending.items
        owners: list[_Entry] = []
        nowhere: list[_Entry] = []
        for entry in entries:
            item, tag = entry.item, entry.tag
            if tag is None:
                tag = entry.tag = PUBLISHER.tag(item.rank)
            if item.exchange:
                route = routes.cached(item.exchange)
                queues = route.lookup(item.routing_key)
                if not queues:
                    nowhere.append(entry)
                    continue
                sending.add(publications(item, queues, tag, store.broker, route.version or b""))
                owners += [entry] * len(queues)
            else:
                sending.add(publications(item, (item.routing_key,), tag, store.broker))
                owners.append(entry)
        outcomes = sending.finish()
        list_created(store, items, outcomes)
        # Once each, in their order, however many of their copies went astray.
        again = dict.fromkeys(self._newly_bound(link, nowhere))
        lost: dict[str, bool] = {}
        for sent, entry, outcome in zip(items, owners, outcomes, strict=True):
            if outcome >= DUPLICATE:
                entry.note(sent)
                stored.append(sent)
            elif outcome == FULL:
                entry.reached = True
                full.append(sent)
            elif outcome == STALE or self._comes_back(sent.queue, store, lost):
                again[entry] = None
        for exchange in dict.fromkeys(entry.item.exchange for entry in again):
            routes.refresh(exchange)
        return again

    def _comes_back(self, queue: str, store: Store, lost: dict[str, bool]) -> bool:
        """Declare again a queue that this connection declared and the broker lost; ask once."""
        if queue not in lost:
            lost[queue] = self.channel.transport.declarations.redeclare(queue, store)
        return lost[queue]

    @staticmethod
    def _newly_bound(link: Link, nowhere: list[_Entry]) -> list[_Entry]:
        """Return those whose exchange has other bindings by now than those they failed by."""
        changed = set()
        for exchange in {entry.item.exchange for entry in nowhere}:
            known = link.routes.cached(exchange).version
            if known == link.store.bindings_version(exchange) is not None:
                continue
            if link.routes.refresh(exchange).version is not None:
                changed.add(exchange)
        return [entry for entry in nowhere if entry.item.exchange in changed]

    # -- what went wrong

    def _failure(self, exc: ReliqError, remark: str) -> BatchUncertain:
        entries = self._uncertain
        numbered = {queue for entry in entries if entry.tag for queue in entry.tag.numbers}
        directly = {entry.item.routing_key for entry in entries if not entry.item.exchange}
        queues = sorted(numbered | directly)
        unrouted = {
            entry.item.exchange
            for entry in entries
            if entry.item.exchange and not (entry.tag and entry.tag.numbers)
        }
        places = [repr(queue) for queue in queues]
        places += [f"exchange {exchange!r}" for exchange in sorted(unrouted)]
        named = ", ".join(places[:_MOST_NAMED])
        if len(places) > _MOST_NAMED:
            named += f" and {len(places) - _MOST_NAMED} more"
        text = (
            f"a batch of {len(entries)} messages for {named} was not flushed: {exc}. Some, all or "
            "none of them may be stored; the batch keeps them, and flush() stores each once"
        )
        if remark:
            text += f" ({remark})"
        return _BatchUncertain(text, self, len(entries), tuple(queues))

    def _report(self, nowhere: list[Outgoing], full: list[Publication]) -> None:
        """Say what was certainly not stored, and raise it where it is an error."""
        if full:
            queues = ", ".join(repr(queue) for queue in dict.fromkeys(one.queue for one in full))
            raise QueueFull(
                f"queue {queues} has reached its x-max-length or x-max-length-bytes and was "
                f"declared with x-overflow 'reject-publish': {len(full)} messages of a batch were "
                f"not stored in it, and {len(nowhere)} had no queue; all others are stored. Add "
                "consumers, raise the limit, or publish later"
            )
        try:
            for item in nowhere:
                self.channel.report_unroutable(item.exchange, item.routing_key)
        except Unroutable as exc:
            raise Unroutable(
                f"{exc} (one of {len(nowhere)} such of a batch; all others are stored)"
            ) from None
