"""All that is known of one message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..message.delivery_tag import published_ms, rank_of
from ..message.envelope import EnvelopeError, decode
from ..message.queue_names import queue_of
from .views import Message, of_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..message.envelope import Envelope
    from ..store.inspection import Failure, Located

Happening: TypeAlias = Literal["published", "failed", "held", "died"]


_FAILED = frozenset({"lapsed", "requeued"})


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """Something that has happened to a message."""

    what: Happening
    """published; failed: a delivery of it ended so; died: it became a dead letter; held: it was
    taken, and is held now."""
    at_ms: int | None
    """When; by the publisher's clock for what was published, else the broker's. None: not known."""
    consumer: str = ""
    """Who held it."""
    detail: str = ""
    """failed: ``lapsed`` (its lease ended without its holder) or ``requeued``; died: the reason,
    and the error, where it is a dead letter still."""
    count: int | None = None
    """failed, died: failed deliveries by then."""


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """One message: what a list shows of it, and all that a list has no room for."""

    message: Message
    """Its state is ``gone`` where it is not in its queue: it was acked, expired, purged or moved.
    Of such a one only tag, rank and when it was published are known."""
    partition: str
    """The partition of its queue that has it; the queue itself, where it is not divided."""
    delivered: bool
    """Whether it was delivered before and came back, in order or as a failed delivery."""
    before: int | None
    """How many are before it in its place; None: gone."""
    expires_ms: int | None
    """ready, delayed: when it expires, where it has a TTL."""
    headers: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    exchange: str = ""
    """That it was published to; "" for the anonymous one."""
    routing_key: str = ""
    content_encoding: str | None = None
    body: str | bytes | None = None
    """Whole, not deserialised: text where its encoding says so; None: gone, or unreadable."""
    history: list[MessageEvent] = field(default_factory=list)
    """As far as it is known, oldest first. Of deliveries, those that failed: a queue keeps its
    last thousand."""


def details(
    name: str, located: Located, now_ms: int, failures: Sequence[Failure]
) -> MessageDetails:
    """Return what is known of a message that is in the queue, or partition, *name*."""
    message = of_stored(queue_of(name), located.place, located.stored, now_ms)
    try:
        envelope = decode(located.stored.envelope or b"")
    except EnvelopeError:
        envelope = None
    common: dict[str, Any] = {
        "message": message,
        "partition": name,
        "delivered": located.stored.failed >= 0,
        "before": located.before,
        "expires_ms": located.expires_ms,
        "history": _history(message, failures),
    }
    if envelope is None:
        return MessageDetails(**common)
    return MessageDetails(
        **common,
        headers=envelope.headers,
        properties=envelope.properties,
        exchange=envelope.exchange,
        routing_key=envelope.routing_key,
        content_encoding=envelope.content_encoding,
        body=_body(envelope),
    )


def gone(queue: str, tag: str, now_ms: int, failures: Sequence[Failure]) -> MessageDetails:
    """Return what the tag itself says of a message that is not in *queue* any more."""
    born = published_ms(tag)
    message = Message(
        queue=queue,
        state="gone",
        tag=tag,
        rank=rank_of(tag),
        published_ms=born,
        age_s=max(now_ms - born, 0) / 1000 if born else 0.0,
        task=None,
        id=None,
        args=None,
        kwargs=None,
        body=None,
        content_type=None,
        size=0,
        count=0,
    )
    return MessageDetails(message, queue, False, None, None, history=_history(message, failures))


def _history(message: Message, failures: Sequence[Failure]) -> list[MessageEvent]:
    found = []
    if message.published_ms:
        found.append(MessageEvent("published", message.published_ms))
    found += [_event(item) for item in failures if item.tag == message.tag]
    if message.state == "unacked":
        found.append(MessageEvent("held", None, message.consumer or ""))
    elif message.state == "dead":
        detail = ": ".join(filter(None, (message.reason, message.error)))
        # That it died is the last thing that is known of it, unless that is kept no longer.
        if found and found[-1].what == "died":
            found.pop()
        consumer = message.consumer or ""
        found.append(MessageEvent("died", message.died_ms, consumer, detail, message.count))
    return found


def _event(failure: Failure) -> MessageEvent:
    what: Happening = "failed" if failure.how in _FAILED else "died"
    return MessageEvent(what, failure.at_ms, failure.consumer, failure.how, failure.failed)


def _body(envelope: Envelope) -> str | bytes:
    body = envelope.body
    if isinstance(body, str) or envelope.content_encoding in {None, "binary"}:
        return body
    try:
        return body.decode(envelope.content_encoding)
    except (LookupError, ValueError):
        return body
