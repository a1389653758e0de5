"""Publish buffer: many messages in one round trip, with all guarantees of single publishes.

Implements Kombu's ``Producer.batch()`` for a transport. Adding a message checks and encodes it, so
a refused message does not affect the others. The flush numbers and sends the messages.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kombu import exceptions

from ...batches.entries import enter, entry_of, withdraw
from ...errors import (
    BatchClosed,
    BatchUncertain,
    BrokerTimeout,
    BrokerUnavailable,
    MessageRefused,
    NotConfirmed,
    NotFound,
    QueueFull,
    ReliqError,
    Unroutable,
    again,
)
from ...forks import OwnLock, here
from ...message.delivery_tag import rename
from ...message.queue_names import queue_of
from ...routing.outgoing import require
from ...routing.publish_ids import PUBLISHER
from ...signals import message_published
from ...values.job_headers import BATCH
from ...values.values import FULL

if TYPE_CHECKING:
    from ...batches.entries import JobEntry
    from ...routing.outgoing import Outgoing
    from ...values.protocol import Store
    from ..channel import Channel

_MOST_BYTES = 8 * 1024 * 1024
_MOST_NAMED = 5


# Kombu 5.7 has an error for this; callers may catch it by that name too.
class _BatchUncertain(
    BatchUncertain,
    getattr(exceptions, "BatchPublishError", exceptions.KombuError),  # type: ignore[misc]
):
    __doc__ = BatchUncertain.__doc__


class PublishBuffer:
    """Up to *max_size* copies or 8 MiB of messages of one channel, until they are flushed.

    Thread-safe. A forked child starts with an empty buffer; the parent sends its own messages.
    """

    _lock = OwnLock()

    def __init__(self, channel: Channel, max_size: int) -> None:
        if isinstance(max_size, bool) or not isinstance(max_size, int) or max_size < 1:
            raise ValueError(f"expected max_size to be a whole number above 0, got: {max_size!r}")
        self.channel = channel
        self.max_size = max_size
        self.refused: tuple[int, ...] = ()
        """Places of the messages that were certainly not stored by the last flush."""
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._process, self._flushing = here(), False
        self._new: list[Outgoing] = []
        self._uncertain: list[Outgoing] = []
        self._blind = False
        self._copies = self._bytes = 0

    def publish(
        self,
        message: dict[str, Any],
        exchange: str = "",
        routing_key: str = "",
        confirm_timeout: float | None = None,
        **_: Any,
    ) -> None:
        """Add *message*, and flush a full batch. Called by Kombu's Producer.

        Raises MessageRefused, Unroutable with ``unroutable="error"``, or BrokerRefused if the
        broker can never provide the confirmation; the batch stays unchanged. Messages left
        uncertain by an earlier flush are flushed first. Raises BatchUncertain for a failed flush,
        with a remark on whether *message* is in the batch.
        """
        self._leave_parent()
        with self._lock:
            item = self._encode(message, exchange, routing_key, confirm_timeout)
            if self._uncertain:
                self._flush("the message of this call was not added")
            copies = self._copies_of(item)
            if not copies:
                return
            size = copies * len(item.envelope)
            if self._new and (
                self._copies + copies > self.max_size or self._bytes + size > _MOST_BYTES
            ):
                self._flush("the message of this call was not added")
            if self._add(item, copies):
                self._flush("the message of this call was added")

    def collect(self, message: dict[str, Any], *where: Any) -> bool:
        """Add a message as :meth:`publish` does, without a flush; return whether to flush."""
        self._leave_parent()
        with self._lock:
            return self.collect_alike(self._encode(message, *where))

    def collect_alike(self, item: Outgoing) -> bool:
        """Add *item*, similar to one of :meth:`collect`; return whether the batch is full."""
        self._leave_parent()
        with self._lock:
            copies = self._copies_of(item)
            return copies > 0 and self._add(item, copies)

    @property
    def last(self) -> Outgoing | None:
        """The last added message, if it was never sent."""
        return self._new[-1] if self._new else None

    def __len__(self) -> int:
        """Return the number of messages that were never sent."""
        return len(self._new)

    def __bool__(self) -> bool:
        """Return True, also for an empty batch."""
        return True

    @property
    def uncertain(self) -> int:
        """The number of messages left uncertain by a failed flush."""
        return len(self._uncertain)

    def flush(self) -> None:
        """Store the messages of the batch, and wait once for their confirmation.

        Usually takes one round trip. After a lost connection, it retries once over another one.
        Raises BatchUncertain, and keeps the messages: another flush, also after the channel or
        batch was closed, stores each once. Raises QueueFull or Unroutable after all other messages
        are flushed; the messages that were certainly not stored are removed. Not atomic.
        """
        self._leave_parent()
        with self._lock:
            self._flush("")

    def flush_over(self, channel: Channel) -> None:
        """Flush, and continue to use *channel*: of the same broker, or of the next one.

        For retries by a policy. Raises BrokerUnavailable (NotConfirmed) instead of BatchUncertain,
        and reports it to the failover, like a single publish. The messages keep their numbers.
        """
        self._leave_parent()
        with self._lock:
            if channel is not self.channel:
                self.channel = channel
                if channel.transport.encoder.failed_over:  # they were encoded for another broker
                    for item in (*self._uncertain, *self._new):
                        item.create = True
            try:
                self._flush("")
            except BatchUncertain as exc:
                reason = exc.__cause__
                if not isinstance(reason, BrokerUnavailable):
                    raise
                transport = channel.transport
                store = transport.link.store
                elsewhere = all(item.goes_elsewhere(store, reason) for item in self._uncertain)
                transport.failback.step_failed(reason, helps_itself=elsewhere)
                raise again(reason) from None

    def discard(self) -> None:
        """Drop messages that were never sent; keep those left uncertain by a failed flush."""
        self._leave_parent()
        with self._lock:
            self._new = []
            self._copies = self._bytes = 0

    def close(self) -> None:
        """Accept no more messages; drop those that were never sent."""
        self.discard()
        self._closed = True

    def _leave_parent(self) -> None:
        if self._process != here():
            self._reset()

    def _encode(self, message: dict[str, Any], *where: Any) -> Outgoing:
        if self._closed:
            raise RuntimeError("the batch is closed")
        return self.channel.transport.encoder.encode(message, *where)

    def _add(self, item: Outgoing, copies: int) -> bool:
        item.tag = PUBLISHER.tag(item.rank, item.headers)
        self._new.append(item)
        self._copies += copies
        self._bytes += copies * len(item.envelope)
        return self._copies >= self.max_size or self._bytes >= _MOST_BYTES

    def _copies_of(self, item: Outgoing) -> int:
        """Return how many queues *item* goes to; 1 if the broker cannot be queried.

        Reports a message without queues. Raises BrokerRefused if *item* can never be confirmed.
        """
        if not item.exchange and item.confirm.by_storing:
            return 1
        channel = self.channel
        if channel.closed or self._blind or not channel.transport.publishing.knows_routes:
            return 1
        try:
            link = channel.transport.link
            require(item.confirm, link.store)
            if not item.exchange:
                return 1
            channel.transport.declarations.settle(item.exchange)
            queues = link.routes.cached(item.exchange).lookup(item.routing_key)
            if not queues:  # the cached routes may be outdated
                queues = link.routes.refresh(item.exchange).lookup(item.routing_key)
        except BrokerUnavailable:
            self._blind = True  # wait for the broker only once; the flush queries it again
            return 1
        if not queues:
            channel.transport.publishing.unroutable.report(item.exchange, item.routing_key)
        return len(queues)

    def _flush(self, remark: str) -> None:
        if self._flushing:
            raise RuntimeError("the batch is being flushed: use another batch in a signal handler")
        self._flushing = True
        try:
            self._flush_all(remark)
        finally:
            self._flushing = False

    def _flush_all(self, remark: str) -> None:
        if not (self._new or self._uncertain):
            return
        self._uncertain += self._new
        self.discard()
        self._blind = False
        try:
            entered = self._enter_jobs()
            self._send_surely()
        except ReliqError as exc:
            if not self._uncertain:  # the jobs were refused, and removed from this batch
                raise
            rename()
            raise _failure(self, self._uncertain, exc, remark) from exc
        except BaseException:
            rename()  # an interrupt: sent messages may be stored, the others are not
            unsent = [item for item in self._uncertain if item.tag is not None and item.tag.settled]
            jobs = [entry for item in unsent if (entry := entry_of(item)) is not None]
            if jobs:
                with suppress(ReliqError):
                    withdraw(self._store, jobs)
            raise
        PUBLISHER.settle(*[item.tag for item in self._uncertain if item.tag is not None])
        flushed, self._uncertain = self._uncertain, []
        failed = [entry for item, entry in entered if item.full or not item.reached]
        if failed:
            withdraw(self._store, failed)
        self.refused = tuple(
            place for place, item in enumerate(flushed) if item.full or not item.reached
        )
        for item in flushed if message_published.receivers else ():
            self.channel.transport.publishing.emit_stored(item)
        _report(flushed, self.channel)

    def _enter_jobs(self) -> list[tuple[Outgoing, JobEntry]]:
        """Add the jobs among the messages to their batches; return them with their entries.

        Raises BatchClosed or NotFound; this buffer then drops the jobs and keeps the rest. It keeps
        all if any job was sent before, perhaps to another broker, which may have stored it.
        """
        routes = self.channel.transport.link.routes
        jobs = [item for item in self._uncertain if BATCH in item.headers]
        pairs = [(item, entry_of(item, routes)) for item in jobs]
        entered = [(item, entry) for item, entry in pairs if entry is not None]
        if entered:
            try:
                enter(self._store, [entry for _, entry in entered])
            except (BatchClosed, MessageRefused, NotFound):
                refused = {item for item, _ in entered}
                if not all(item.tag is None or item.tag.settled for item in refused):
                    raise
                flushed, self._uncertain = self._uncertain, []
                self._new = [item for item in flushed if item not in refused]
                self.refused = tuple(at for at, item in enumerate(flushed) if item in refused)
                raise
        return entered

    @property
    def _store(self) -> Store:
        link = self.channel.transport.link
        return link.session.spare_store() if self.channel.closed else link.store

    def _send_surely(self) -> None:
        """Send over the channel's connection or, if that is lost, over the session's own."""
        transport = self.channel.transport
        link, send = transport.link, transport.publishing.send
        for exchange in {item.exchange for item in self._uncertain}:
            transport.declarations.settle(exchange)  # another connection would drop these
        if not self.channel.closed:
            try:
                send(self._uncertain)
            except (BrokerTimeout, NotConfirmed):
                raise  # a second attempt would only wait for the same time again
            except BrokerUnavailable:
                pass
            else:
                return
        # Queues declared by this channel can be repaired over the other connection too.
        send(self._uncertain, link.over(link.session.spare_store()))


def _failure(
    batch: PublishBuffer, items: list[Outgoing], exc: ReliqError, remark: str
) -> BatchUncertain:
    numbered = {queue_of(name) for item in items if item.tag for name in item.tag.numbers}
    directly = {item.routing_key for item in items if not item.exchange}
    queues = sorted(numbered | directly)
    unrouted = {
        item.exchange for item in items if item.exchange and not (item.tag and item.tag.numbers)
    }
    places = [repr(queue) for queue in queues]
    places += [f"exchange {exchange!r}" for exchange in sorted(unrouted)]
    named = ", ".join(places[:_MOST_NAMED])
    if len(places) > _MOST_NAMED:
        named += f" and {len(places) - _MOST_NAMED} more"
    text = (
        f"a batch of {len(items)} messages for {named} was not flushed: {exc}. Some, all or "
        "none of them may be stored; the batch keeps them, and flush() stores each once"
    )
    if remark:
        text += f" ({remark})"
    return _BatchUncertain(text, batch, len(items), tuple(queues))


def _report(items: list[Outgoing], channel: Channel) -> None:
    """Report the messages that were certainly not stored; raises QueueFull or Unroutable."""
    nowhere = [item for item in items if not item.reached]
    full = [queue for item in items for queue, why in item.refused.items() if why == FULL]
    if full:
        queues = ", ".join(map(repr, dict.fromkeys(full)))
        raise QueueFull(
            f"queue {queues} has reached its x-max-length or x-max-length-bytes and was "
            f"declared with x-overflow 'reject-publish': {len(full)} messages of a batch were "
            f"not stored in it, and {len(nowhere)} had no queue; all others are stored. Add "
            "consumers, raise the limit, or publish later"
        )
    try:
        for item in nowhere:
            channel.transport.publishing.unroutable.report(item.exchange, item.routing_key)
    except Unroutable as exc:
        raise Unroutable(
            f"{exc} (one of {len(nowhere)} such messages of a batch; all others are stored)"
        ) from None
