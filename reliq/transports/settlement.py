"""Settlement: how delivered messages that are not acked go back, or become dead letters."""

from __future__ import annotations

import logging
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from ..consumer import log_events
from ..errors import BrokerUnavailable
from ..signals import emit, emit_at_the_limit, identity, message_dead
from ..store.values import Delivery, How, Lease
from .parts import Parts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..store.protocol import Store
    from .message import Message

logger = logging.getLogger("reliq")


class SettlingTransport(Parts, Protocol):
    """What settling needs of a transport."""

    def dead_lettered(self, queue: str) -> None:
        """Note that a message of *queue* became a dead letter: there is room for the next."""


class Holder(Protocol):
    """Whose messages they are: a channel, open or closed."""

    @property
    def transport(self) -> SettlingTransport:
        """What it consumes over."""

    def open_store(self) -> Store:
        """Return a connection that works also after the channel was closed."""

    def keep_unsettled(self, message: Message) -> None:
        """Have a message again that could not be settled."""


class Settlement:
    """Tells the broker, the log and the signals. The caller has taken the messages out."""

    def __init__(self, channel: Holder) -> None:
        self._channel = channel

    def release(self, how: How, messages: list[Message]) -> None:
        """Put *messages* back; what cannot be told now is told over the next connection.

        Raises BrokerUnavailable.
        """
        transport = self._channel.transport
        outbox = transport.link.session.outbox
        groups = iter(leases_of(messages))
        for queue, leases in groups:
            store = self._channel.open_store()
            try:
                released = outbox.release(store, queue, how, leases)
            except BrokerUnavailable:
                for other, rest in groups:
                    outbox.release_later(other, how, rest)
                raise
            transport.reserver.ask_again(queue)
            _report(released.refused, queue, how)
            log_events.at_the_limit(queue, released.dead)
            if released.dead:
                known = {message.delivery_tag: message.headers for message in messages}
                emit_at_the_limit(store.broker, queue, released.dead, "nacked", known)
                self._route_soon(queue)

    def dead_letter(self, messages: list[Message]) -> None:
        """Give up *messages*; the channel has that again for which it raises BrokerUnavailable."""
        transport = self._channel.transport
        outbox = transport.link.session.outbox
        for message in messages:
            queue, tag, headers = message.queue, message.delivery_tag, message.headers
            reason, text = message.verdict
            leases = [Lease(tag, message.token)]
            store = self._channel.open_store()
            try:
                refused = outbox.dead_letter(store, queue, reason, text, leases)
            except BrokerUnavailable:
                self._channel.keep_unsettled(message)
                raise
            _report(refused, queue, reason)
            if not refused:
                count = headers.get("x-delivery-count", 0)
                self._tell_dead(queue, tag, headers, count, reason, text)
            self._route_soon(queue)
            transport.dead_lettered(queue)

    def dead_letter_undecodable(self, delivery: Delivery, error: Exception, no_ack: bool) -> None:
        """Give up what has no envelope that could be read, and so never was a message."""
        queue, tag = delivery.queue, delivery.tag
        if no_ack:
            logger.error(
                "message %s of %r is undecodable and is gone, as its consumer needs no ack: %s",
                tag,
                queue,
                error,
            )
            return
        transport, (session, store, _) = self._channel.transport, self._channel.transport.link
        leases, reason, text = [Lease(tag, delivery.token)], "undecodable", str(error)
        if not session.outbox.dead_letter(store, queue, reason, text, leases):
            self._tell_dead(queue, tag, {}, max(delivery.failed, 0), reason, text)
        transport.dead_lettered(queue)

    def _tell_dead(
        self, queue: str, tag: str, headers: dict[str, Any], count: int, reason: str, error: str
    ) -> None:
        log_events.dead_lettered(queue, tag, reason, error)
        store = self._channel.transport.link.store
        emit(
            message_dead,
            store.broker,
            queue=queue,
            tag=tag,
            count=count,
            consumer=store.consumer,
            reason=reason,
            error=error,
            **identity(headers),
        )

    def _route_soon(self, queue: str) -> None:
        """Have the dead letters of *queue* routed on, where we know that it asks for it."""
        transport = self._channel.transport
        declared = transport.declarations.queues.get(queue)
        if declared is not None and "dead_letter_exchange" in declared[1]:
            transport.link.session.duties.route_soon(queue)


def leases_of(messages: list[Message]) -> Iterable[tuple[str, list[Lease]]]:
    """Yield the leases of *messages* by queue, in their order."""
    for queue, group in groupby(messages, attrgetter("queue")):
        yield queue, [Lease(message.delivery_tag, message.token) for message in group]


def _report(refused: list[str], queue: str, how: str) -> None:
    for tag in refused:
        logger.warning(
            "message %s of %r could not be %s: its lease was lost, another consumer "
            "may have it; raise visibility_timeout if this happens in normal operation",
            tag,
            queue,
            how,
        )
