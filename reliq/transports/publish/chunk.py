"""Chunk: prepared messages that are sent together, and retried like a single message.

Owns the retries by Celery's policy, over other connections and other brokers of the list, and the
outcome of each message. The messages form one publish buffer. If the list leads to a broker that
is not reliq's, they are published one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.exceptions import OperationalError

from ...message.envelope import AlikeEnvelopes
from ...values.job_headers import BATCH, join_batch
from ..channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...errors import Flushable
    from ...message.envelope import Differing
    from ...routing.outgoing import Outgoing
    from .publish_buffer import PublishBuffer

# Larger than any chunk: except for the limit in bytes, the caller decides when to flush.
_MOST = 100_000


class Prepared(NamedTuple):
    """A serialized and addressed message that was not sent."""

    body: Any
    priority: int | None
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: str
    routing_key: str
    declare: Sequence[Any]
    """Entities to declare before it is sent."""
    confirm_timeout: float | None
    differing: Differing | None = None
    """The fields in which it differs from messages with this same object; None: any field."""

    @property
    def queue(self) -> str:
        """The queue that it names; "" if an exchange routes it."""
        return "" if self.exchange else self.routing_key


class Flushed(NamedTuple):
    """The outcome of a flush, by place; a message in neither set is stored."""

    refused: frozenset[int] = frozenset()
    """Places of messages that are certainly not stored."""
    uncertain: frozenset[int] = frozenset()
    batch: Flushable | None = None
    """The buffer that keeps the uncertain messages."""


class Chunk:
    """Messages that *producer* sends over its current connection."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._batch: PublishBuffer | None = None
        self._made_by: Any = None
        """The channel that created the buffer."""
        self._example: Outgoing
        self._envelopes: AlikeEnvelopes | None = None
        self._differing: Differing | None = None
        self._opened = False
        self._declare: list[Any] = []
        self._declared: Any = None
        """Entities declared by the previous message."""
        self._policy: Mapping[str, Any] | None = None
        self._waiting: list[tuple[int, Prepared]] = []
        self._published = 0
        """How many of the waiting messages were published one by one."""
        self.flushed = Flushed()
        """The outcome of the last flush."""

    def retry(self, policy: Mapping[str, Any]) -> None:
        """Retry by *policy*, as Kombu's publish does."""
        if policy is not self._policy:
            self._policy = policy
            self._producer.connection.transport_options.update(policy)  # as Kombu does

    def add(self, place: int, message: Prepared) -> bool:
        """Add a message; return whether to flush now.

        Raises the errors of encoding, routing and connecting; the message is then not added.
        """
        if message.declare is not self._declared or not self._opened:
            known = {id(entity) for entity in self._declare}
            self._declare += [entity for entity in message.declare or () if id(entity) not in known]
            self._with_retries(self._open)
            self._declared = message.declare
        batch = self._batch
        full = False
        if batch is not None:
            before = len(batch)
            item = self._alike(message)
            full = self._collect(batch, message) if item is None else batch.collect_alike(item)
            if len(batch) == before:  # no queue is bound
                return False
        self._waiting.append((place, message))
        return full

    def flush(self) -> None:
        """Send the added messages; sets :attr:`flushed`, also when it raises."""
        if not self._waiting:
            self.flushed = Flushed()
            return
        self.flushed = Flushed(uncertain=frozenset(place for place, _ in self._waiting))
        try:
            self._with_retries(self._send)
            self.flushed = Flushed()
        except Exception as exc:
            self.flushed = self._failed(lost=isinstance(exc, (OSError, OperationalError)))
            raise
        finally:
            self._waiting, self._published = [], 0

    def _collect(self, batch: PublishBuffer, message: Prepared) -> bool:
        prepared = _for_kombu(self._made_by, message)
        before, differing = len(batch), message.differing
        full = batch.collect(
            prepared, message.exchange, message.routing_key, message.confirm_timeout
        )
        if differing is not None and batch.last is not None and len(batch) > before:
            self._differing, self._example = differing, batch.last
            self._envelopes = AlikeEnvelopes(batch.last.envelope, differing)
        return full

    def _alike(self, message: Prepared) -> Outgoing | None:
        """Encode *message* like the previous one; return None if it needs its own encoding."""
        differing, envelopes = message.differing, self._envelopes
        if envelopes is None or differing is None or differing is not self._differing:
            return None
        join_batch(message.headers)
        if message.headers.get(BATCH) != self._example.headers.get(BATCH):
            return None
        envelope = envelopes.encode(message.body, message.headers, message.properties)
        if envelope is None or len(envelope) > self._made_by.transport.options.max_message_bytes:
            return None  # encoding it separately raises the proper error
        return self._example.like(envelope, message.headers)

    def _failed(self, lost: bool) -> Flushed:
        places, batch = [place for place, _ in self._waiting], self._batch
        if batch is None:  # published one by one: all earlier messages are stored
            rest = places[self._published :]
            cut = 1 if lost else 0
            return Flushed(frozenset(rest[cut:]), frozenset(rest[:cut]))
        if batch.uncertain:
            return Flushed(uncertain=frozenset(places), batch=batch)
        if len(batch):  # nothing was sent
            batch.discard()
            return Flushed(frozenset(places))
        return Flushed(frozenset(places[at] for at in batch.refused))

    def _with_retries(self, step: Callable[[], None]) -> None:
        if self._policy is not None:
            step = self._producer.connection.ensure(self._producer, step, **self._policy)
        step()

    def _open(self) -> None:
        channel = self._producer.channel
        if not self._opened and isinstance(channel, Channel):
            channel.prepare_message("")  # a pending failback happens before the declarations
            self._batch, self._made_by = channel.create_publish_batch(_MOST), channel
        self._do_declare()
        self._opened = True

    def _do_declare(self) -> None:
        for entity in self._declare:
            self._producer.maybe_declare(entity)

    def _send(self) -> None:
        channel = self._producer.channel
        self._do_declare()
        if self._batch is not None and isinstance(channel, Channel):
            self._batch.flush_over(channel)
            return
        self._batch = None
        for _, message in self._waiting[self._published :]:
            channel.basic_publish(
                _for_kombu(channel, message),
                exchange=message.exchange,
                routing_key=message.routing_key,
            )
            self._published += 1


def _for_kombu(channel: Any, message: Prepared) -> Any:
    """Return the message that *channel* publishes; keeps the properties of *message* unchanged."""
    *content, properties = message[:6]
    return channel.prepare_message(*content, dict(properties))
