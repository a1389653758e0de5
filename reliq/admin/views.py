"""Views of stored messages for operators: in a list, or with all details.

They are read from the headers. Bodies are never deserialised.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..message.delivery_tag import published_ms, rank_of
from ..message.envelope import EnvelopeError, decode
from ..message.queue_names import queue_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..message.envelope import Envelope
    from ..values.inspection import AnyPlace, Failure, Located, Stored

_SHOWN = 200
# Content types of text bodies; other bodies are not shown.
_TEXTS = frozenset({"application/json", "text/plain", "application/x-yaml"})


@dataclass(frozen=True, slots=True)
class Message:
    """One message and its state. Times are in ms since the epoch."""

    queue: str
    state: str
    """ready, delayed, unacked or dead."""
    tag: str
    """The delivery tag, an argument of other commands."""
    rank: int
    """The rank of its priority; 0 is delivered first."""
    published_ms: int
    """By its publisher's clock. A move to this queue counts as the publication."""
    age_s: float
    task: str | None
    """The name of the Celery task."""
    id: str | None
    """The id of the Celery task, or the message id."""
    args: str | None
    """Celery's text of the arguments (``argsrepr``), which Celery may shorten."""
    kwargs: str | None
    body: str | None
    """The beginning of a text body (such as JSON), unchanged; None for other bodies, and for large
    ones, which are not read."""
    content_type: str | None
    size: int
    """Bytes stored."""
    count: int
    """Failed deliveries."""
    due_ms: int | None = None
    """delayed: its due time."""
    lease_until_ms: int | None = None
    """unacked: the end of its lease, unless its consumer renews it."""
    consumer: str | None = None
    """unacked: its holder; dead: its last holder."""
    reason: str | None = None
    """dead: the reason."""
    error: str | None = None
    died_ms: int | None = None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _beginning(message: Envelope) -> str | None:
    """Return the first characters of a text body."""
    if message.content_type not in _TEXTS:
        return None
    body = message.body
    head = body[: 4 * _SHOWN]
    text = head if isinstance(head, str) else head.decode("utf-8", "replace")
    return text[:_SHOWN] + ("..." if len(text) > _SHOWN or len(body) > len(head) else "")


def _read(
    queue: str, state: str, tag: str, envelope: bytes | None, now_ms: int, size: int = 0
) -> dict[str, Any]:
    """Return the first fields of a Message, from the envelope's bytes."""
    born = published_ms(tag)
    row: dict[str, Any] = {
        "queue": queue,
        "state": state,
        "tag": tag,
        "rank": rank_of(tag),
        "published_ms": born,
        "age_s": max(now_ms - born, 0) / 1000 if born else 0.0,
        "size": size or len(envelope or b""),
        **dict.fromkeys(("task", "id", "args", "kwargs", "body", "content_type")),
    }
    try:
        message = decode(envelope or b"")
    except EnvelopeError:
        return row
    headers = message.headers
    row.update(
        task=_text(headers.get("task")),
        id=_text(headers.get("id")) or _text(message.properties.get("message_id")),
        args=_text(headers.get("argsrepr")),
        kwargs=_text(headers.get("kwargsrepr")),
        body=None if size > len(envelope or b"") else _beginning(message),
        content_type=_text(message.content_type),
    )
    return row


def of_stored(queue: str, place: AnyPlace, item: Stored, now_ms: int) -> Message:
    """Return the view of a message in any state."""
    places: dict[str, Any] = {}
    if place == "delayed":
        places["due_ms"] = item.at_ms
    elif place == "unacked":
        places = {"lease_until_ms": item.at_ms or None, "consumer": item.consumer}
    elif place == "dead":
        places = {"consumer": item.consumer or None, "reason": item.reason}
        places |= {"error": item.error or None, "died_ms": item.at_ms}
    common = _read(queue, place, item.tag, item.envelope, now_ms, item.size)
    return Message(**common, count=max(item.failed, 0), **places)


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """An event in the history of a message."""

    what: Literal["published", "failed", "held", "died"]
    """published; failed: a delivery failed; died: it became a dead letter; held: a consumer
    reserved it, and holds it now."""
    at_ms: int | None
    """By the broker's clock; for published, by the publisher's. None: unknown."""
    consumer: str = ""
    """The holder of the message."""
    detail: str = ""
    """failed: ``lapsed`` (the lease was not renewed, or the holder died) or ``requeued``; died: the
    reason, and the error if it is still a dead letter."""
    count: int | None = None
    """failed, died: the failed deliveries so far."""


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """One message with all details."""

    message: Message
    """Its state is ``gone`` if it has left its queue: it was acked, expired, purged or moved. Then
    only its tag, rank and publication time are known."""
    partition: str
    """The partition of its queue that has it, or the queue if it has no partitions."""
    delivered: bool
    """Whether it was delivered before and returned, by a release or a failure."""
    before: int | None
    """The number of messages ahead of it in its state; None: gone."""
    expires_ms: int | None
    """ready, delayed: the end of its TTL, if it has one."""
    headers: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    exchange: str = ""
    """The exchange of its publication; "": the anonymous exchange."""
    routing_key: str = ""
    content_encoding: str | None = None
    body: str | bytes | None = None
    """The complete body, not deserialised; text if its encoding is one. None: gone, unreadable."""
    history: list[MessageEvent] = field(default_factory=list)
    """The known events, oldest first. They include only failed deliveries, of which a queue keeps
    the last thousand."""


def details(
    name: str, located: Located, now_ms: int, failures: Sequence[Failure]
) -> MessageDetails:
    """Return the details of a message in the queue or partition *name*."""
    message = of_stored(queue_of(name), located.place, located.stored, now_ms)
    held: dict[str, Any] = {}
    with suppress(EnvelopeError):
        envelope = decode(located.stored.envelope or b"")
        names = ("headers", "properties", "exchange", "routing_key", "content_encoding")
        held = {field: getattr(envelope, field) for field in names} | {"body": _body(envelope)}
    return MessageDetails(
        message=message,
        partition=name,
        delivered=located.stored.failed >= 0,
        before=located.before,
        expires_ms=located.expires_ms,
        history=_history(message, failures),
        **held,
    )


def gone(queue: str, tag: str, now_ms: int, failures: Sequence[Failure]) -> MessageDetails:
    """Return the details of a message that has left *queue*, from its tag."""
    message = Message(**_read(queue, "gone", tag, None, now_ms), count=0)
    return MessageDetails(message, queue, False, None, None, history=_history(message, failures))


def _history(message: Message, failures: Sequence[Failure]) -> list[MessageEvent]:
    events = []
    if message.published_ms:
        events.append(MessageEvent("published", message.published_ms))
    events += [
        MessageEvent(
            "failed" if item.how in {"lapsed", "requeued"} else "died",
            item.at_ms,
            item.consumer,
            item.how,
            item.failed,
        )
        for item in failures
        if item.tag == message.tag
    ]
    if message.state == "unacked":
        events.append(MessageEvent("held", None, message.consumer or ""))
    elif message.state == "dead":
        detail = ": ".join(filter(None, (message.reason, message.error)))
        # Replace the death in the failures, if it is still kept, by the dead letter's own record.
        if events and events[-1].what == "died":
            events.pop()
        consumer = message.consumer or ""
        events.append(MessageEvent("died", message.died_ms, consumer, detail, message.count))
    return events


def _body(envelope: Envelope) -> str | bytes:
    body = envelope.body
    if isinstance(body, str) or envelope.content_encoding in {None, "binary"}:
        return body
    try:
        return body.decode(envelope.content_encoding)
    except (LookupError, ValueError):
        return body
