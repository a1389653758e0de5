"""A stored message as an operator sees it, in a list or with all that is known of it.

Read from its headers, never deserialised.
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
    from ..store.inspection import AnyPlace, Failure, Located, Stored

_SHOWN = 200
# What is text by itself; everything else is not looked into.
_TEXTS = frozenset({"application/json", "text/plain", "application/x-yaml"})


@dataclass(frozen=True, slots=True)
class Message:
    """One message, where it is, and what is known of it. Times are ms since the epoch."""

    queue: str
    state: str
    """ready, delayed, unacked or dead."""
    tag: str
    """Its delivery tag: what the other commands take."""
    rank: int
    """Of its priority: 0 is given out first."""
    published_ms: int
    """By its publisher's clock; a message that was moved here counts from then."""
    age_s: float
    task: str | None
    """The name of the Celery task."""
    id: str | None
    """The id of the Celery task, or the message id."""
    args: str | None
    """As Celery wrote them for people (``argsrepr``), maybe shortened by it."""
    kwargs: str | None
    body: str | None
    """The beginning of a body that is text by itself (JSON), undecoded; None of one that is not,
    or so large that it was not read."""
    content_type: str | None
    size: int
    """Bytes stored."""
    count: int
    """Failed deliveries."""
    due_ms: int | None = None
    """delayed: when it becomes ready."""
    lease_until_ms: int | None = None
    """unacked: when it returns, unless its consumer renews the lease."""
    consumer: str | None = None
    """unacked: who holds it; dead: who held it last."""
    reason: str | None = None
    """dead: why."""
    error: str | None = None
    died_ms: int | None = None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _beginning(message: Envelope) -> str | None:
    """Return the first characters of a body that nobody has to decode."""
    if message.content_type not in _TEXTS:
        return None
    body = message.body
    head = body[: 4 * _SHOWN]
    text = head if isinstance(head, str) else head.decode("utf-8", "replace")
    return text[:_SHOWN] + ("..." if len(text) > _SHOWN or len(body) > len(head) else "")


def _read(
    queue: str, state: str, tag: str, envelope: bytes | None, now_ms: int, size: int = 0
) -> dict[str, Any]:
    """Return what the bytes say, as the first fields of a Message."""
    born = published_ms(tag)
    found: dict[str, Any] = {
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
        return found
    headers = message.headers
    found.update(
        task=_text(headers.get("task")),
        id=_text(headers.get("id")) or _text(message.properties.get("message_id")),
        args=_text(headers.get("argsrepr")),
        kwargs=_text(headers.get("kwargsrepr")),
        body=None if size > len(envelope or b"") else _beginning(message),
        content_type=_text(message.content_type),
    )
    return found


def of_stored(queue: str, place: AnyPlace, item: Stored, now_ms: int) -> Message:
    """Return the view of a message, wherever it is."""
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
    """Something that has happened to a message."""

    what: Literal["published", "failed", "held", "died"]
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
    """Return what the tag itself says of a message that is not in *queue* any more."""
    message = Message(**_read(queue, "gone", tag, None, now_ms), count=0)
    return MessageDetails(message, queue, False, None, None, history=_history(message, failures))


def _history(message: Message, failures: Sequence[Failure]) -> list[MessageEvent]:
    found = []
    if message.published_ms:
        found.append(MessageEvent("published", message.published_ms))
    found += [
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
        found.append(MessageEvent("held", None, message.consumer or ""))
    elif message.state == "dead":
        detail = ": ".join(filter(None, (message.reason, message.error)))
        # That it died is the last thing that is known of it, unless that is kept no longer.
        if found and found[-1].what == "died":
            found.pop()
        consumer = message.consumer or ""
        found.append(MessageEvent("died", message.died_ms, consumer, detail, message.count))
    return found


def _body(envelope: Envelope) -> str | bytes:
    body = envelope.body
    if isinstance(body, str) or envelope.content_encoding in {None, "binary"}:
        return body
    try:
        return body.decode(envelope.content_encoding)
    except (LookupError, ValueError):
        return body
