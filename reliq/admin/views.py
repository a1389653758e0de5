"""A stored message as an operator sees it: read from its headers, never deserialised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..message.delivery_tag import published_ms, rank_of
from ..message.envelope import EnvelopeError, decode

if TYPE_CHECKING:
    from ..message.envelope import Envelope
    from ..store.inspection import AnyPlace, DeadLetter, Stored

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


def of_dead_letter(queue: str, dead_letter: DeadLetter, now_ms: int) -> Message:
    """Return the view of a dead letter that was asked for with its envelope."""
    return Message(
        **_read(queue, "dead", dead_letter.tag, dead_letter.envelope, now_ms),
        count=dead_letter.count,
        consumer=dead_letter.consumer or None,
        reason=dead_letter.reason,
        error=dead_letter.error or None,
        died_ms=dead_letter.died_ms,
    )
