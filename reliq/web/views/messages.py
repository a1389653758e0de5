"""Views of messages: one message, dead letters by cause, and the search."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...printable import jsonable
from ..asked import PAGE, if_reachable

if TYPE_CHECKING:
    from ...admin import MessageDetails
    from ..asked import Look

_MOST_SHOWN = 65_536
_BYTES_SHOWN = 256
# Queues whose groups are counted for one page: those with the most dead letters.
_MOST_QUEUES = 20
_LOOKS = 5000
_ROWS = 200


def message(look: Look) -> dict[str, Any]:
    """Return the data of a message, found by its tag or its id; raises ReliqError."""
    found = look.inspector.message(look.queue, look.asked.text("tag") or look.asked.text("id"))
    return {
        "details": found,
        "consumers": if_reachable(look.inspector.consumers) if found.message.consumer else [],
        "message": look.hidden([found.message])[0],
        "headers": _pairs(look, found.headers),
        "properties": _pairs(look, found.properties),
        "body": _body(look, found),
    }


def dead(look: Look) -> dict[str, Any]:
    """Return the data of the dead letters, by group; raises ReliqError."""
    there = look.most("dead")
    looked = there[:_MOST_QUEUES]
    looks = max(_LOOKS // max(len(looked), 1), 500)
    counts = [look.watch.counting.groups(look.inspector, name, looks) for name, _ in looked]
    groups = [(count.queue, group) for count in counts for group in count.groups]
    groups.sort(key=lambda item: (-item[1].count, item[1].fingerprint))
    return {
        "total": sum(count for _, count in there),
        "queues": there,
        "groups": groups[:_ROWS],
        "counted": sum(count.counted for count in counts),
        "countable": sum(count.total for count in counts),
        "more": len(there) - len(looked),  # queues that are not counted
    }


def group(look: Look) -> dict[str, Any]:
    """Return the data of one group; raises ReliqError."""
    name, fingerprint = look.queue, look.asked.text("group")
    counted = look.watch.counting.groups(look.inspector, name)
    found = look.inspector.dead_letters_of_group(name, fingerprint, limit=PAGE, cursor=look.cursor)
    return {
        "queue": name,
        "fingerprint": fingerprint,
        # The totals of the group; None: not counted yet.
        "group": next((one for one in counted.groups if one.fingerprint == fingerprint), None),
        "counted": counted,
        "found": found,
        "messages": look.hidden(found.found),
    }


def search(look: Look) -> dict[str, Any]:
    """Return the results of a search so far; raises ReliqError."""
    # Replace invalid characters, which occur in no task name and no id.
    text = look.asked.text("text").strip().encode("utf-8", "replace").decode()
    found = None
    if text:
        found = look.inspector.find(text, look.queue or None, limit=PAGE, cursor=look.cursor)
    messages = look.hidden(found.found) if found else []
    return {"text": text, "search": found, "messages": messages}


def _pairs(look: Look, values: dict[str, Any]) -> list[tuple[str, str]]:
    shown = []
    for name, value in values.items():
        seen = look.redaction.header(str(name), value)
        if not isinstance(seen, str):
            try:
                seen = json.dumps(jsonable(seen), ensure_ascii=False, default=str)
            except (ValueError, RecursionError):
                seen = str(seen)[:_MOST_SHOWN]
        shown.append((str(name), seen))
    return sorted(shown)


def _body(look: Look, found: MessageDetails) -> dict[str, Any]:
    """Return the displayed body and its kind: json, text, bytes or nothing."""
    body = found.body
    if body is None:
        return _shown("", "nothing", 0)
    size = len(body)
    kind = (found.message.content_type or "").partition(";")[0]
    if isinstance(body, bytes):
        text = None
        if kind.startswith("text/") or kind == "application/json":
            with suppress(UnicodeDecodeError):
                text = body.decode()
        if text is None:
            if look.redaction:
                return _shown(look.redaction.json("") or "", "bytes", size)
            shown = _shown(body[:_BYTES_SHOWN].hex(" "), "bytes", size)
            return shown | {"cut": size > _BYTES_SHOWN}
        body = text
    seen = look.redaction.json(body) or ""
    if kind == "application/json":
        if len(seen) <= _MOST_SHOWN:
            with suppress(ValueError, RecursionError):
                seen = json.dumps(json.loads(seen), indent=2, ensure_ascii=False)
        return _shown(seen, "json", size)
    return _shown(seen, "text", size)


def _shown(text: str, kind: str, size: int) -> dict[str, Any]:
    cut = len(text) > _MOST_SHOWN
    return {"text": text[:_MOST_SHOWN], "kind": kind, "size": size, "cut": cut}
