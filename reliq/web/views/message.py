"""One message, with all that is known of it: its headers, its body where that is text, its past."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .queues import hidden

if TYPE_CHECKING:
    from ...admin import Message, MessageDetails
    from .look import Look

_MOST_SHOWN = 65_536
_BYTES_SHOWN = 256
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it is shown."""

    text: str
    kind: str
    """What it is: json, text, bytes, or nothing."""
    size: int
    cut: bool


@dataclass(frozen=True, slots=True)
class MessageView:
    """One message."""

    details: MessageDetails
    message: Message
    headers: list[tuple[str, str]]
    properties: list[tuple[str, str]]
    body: Body
    now_ms: int


def message(look: Look) -> MessageView:
    """Return what is shown of a message, found by its tag or its id; raises ReliqError."""
    asked = look.asked
    found = look.inspector.message(look.queue, asked.text("tag") or asked.text("id"))
    return MessageView(
        found,
        hidden(look, found.message),
        _pairs(look, found.headers),
        _pairs(look, found.properties),
        _body(look, found),
        look.inspector.now_ms(),
    )


def _pairs(look: Look, values: dict[str, Any]) -> list[tuple[str, str]]:
    shown = []
    for name, value in values.items():
        seen = look.redaction.header(str(name), value)
        shown.append((str(name), seen if isinstance(seen, str) else _written(seen)))
    return sorted(shown)


def _written(value: Any) -> str:
    try:
        return json.dumps(_plain(value), ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return str(value)[:_MOST_SHOWN]


def _plain(value: Any, depth: int = 0) -> Any:
    """Return *value* as JSON can have it: keys are text, and what lies too deep is left out."""
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, dict):
        return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, depth + 1) for inner in value]
    return value


def _body(look: Look, found: MessageDetails) -> Body:
    body = found.body
    if body is None:
        return Body("", "nothing", 0, cut=False)
    size = len(body)
    kind = (found.message.content_type or "").partition(";")[0]
    if isinstance(body, bytes):
        text = _text(body) if kind.startswith("text/") or kind == "application/json" else None
        if text is None:
            if look.redaction:
                return Body(look.redaction.json("") or "", "bytes", size, cut=False)
            return Body(body[:_BYTES_SHOWN].hex(" "), "bytes", size, size > _BYTES_SHOWN)
        body = text
    if kind == "application/json":
        seen = look.redaction.json(body) or ""
        return _shown(_indented(seen), "json", size)
    seen = look.redaction.json(body) or "" if look.redaction else body
    return _shown(seen, "text", size)


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _indented(text: str) -> str:
    if len(text) > _MOST_SHOWN:
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _shown(text: str, kind: str, size: int) -> Body:
    return Body(text[:_MOST_SHOWN], kind, size, len(text) > _MOST_SHOWN)
