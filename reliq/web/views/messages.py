"""Views of messages: one message, dead letters by cause, and the search."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...printable import jsonable
from ..page_request import PAGE, if_reachable

if TYPE_CHECKING:
    from ...admin import MessageDetails
    from ..page_request import Source

_MOST_SHOWN = 65_536
_BYTES_SHOWN = 256
# Queues whose groups are counted for one page: those with the most dead letters.
_MOST_QUEUES = 20
_SCANS = 5000
_ROWS = 200


def message(source: Source) -> dict[str, Any]:
    """Return the data of a message, found by its tag or its id; raises ReliqError."""
    name = source.request.text("tag") or source.request.text("id")
    details = source.inspector.message(source.queue, name)
    return {
        "details": details,
        "consumers": if_reachable(source.inspector.consumers) if details.message.consumer else [],
        "limits": if_reachable(lambda: source.inspector.limits(details.message.queue)),
        "message": source.hidden([details.message])[0],
        "headers": _pairs(source, details.headers),
        "properties": _pairs(source, details.properties),
        "body": _body(source, details),
    }


def dead(source: Source) -> dict[str, Any]:
    """Return the data of the dead letters, by group; raises ReliqError."""
    there = source.most("dead")
    looked = there[:_MOST_QUEUES]
    looks = max(_SCANS // max(len(looked), 1), 500)
    counts = [source.watch.counting.groups(source.inspector, name, looks) for name, _ in looked]
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


def group(source: Source) -> dict[str, Any]:
    """Return the data of one group; raises ReliqError."""
    name, fingerprint = source.queue, source.request.text("group")
    counted = source.watch.counting.groups(source.inspector, name)
    inspector, after = source.inspector, source.cursor
    matching = inspector.dead_letters_of_group(name, fingerprint, limit=PAGE, cursor=after)
    return {
        "queue": name,
        "fingerprint": fingerprint,
        # The totals of the group; None: not counted yet.
        "group": next((item for item in counted.groups if item.fingerprint == fingerprint), None),
        "counted": counted,
        "matching": matching,
        "messages": source.hidden(matching.found),
    }


def search(source: Source) -> dict[str, Any]:
    """Return the results of a search so far; raises ReliqError."""
    # Replace invalid characters, which occur in no task name and no id.
    text = source.request.text("text").strip().encode("utf-8", "replace").decode()
    result = None
    if text:
        result = source.inspector.find(text, source.queue or None, limit=PAGE, cursor=source.cursor)
    messages = source.hidden(result.found) if result else []
    return {"text": text, "search": result, "messages": messages}


def _pairs(source: Source, values: dict[str, Any]) -> list[tuple[str, str]]:
    shown = []
    for name, value in values.items():
        seen = source.redaction.header(str(name), value)
        if not isinstance(seen, str):
            try:
                seen = json.dumps(jsonable(seen), ensure_ascii=False, default=str)
            except (ValueError, RecursionError):
                seen = str(seen)[:_MOST_SHOWN]
        shown.append((str(name), seen))
    return sorted(shown)


def _body(source: Source, details: MessageDetails) -> dict[str, Any]:
    """Return the displayed body and its kind: json, text, bytes or nothing."""
    body = details.body
    if body is None:
        return _shown("", "nothing", 0)
    size = len(body)
    kind = (details.message.content_type or "").partition(";")[0]
    if isinstance(body, bytes):
        text = None
        if kind.startswith("text/") or kind == "application/json":
            with suppress(UnicodeDecodeError):
                text = body.decode()
        if text is None:
            if source.redaction:
                return _shown(source.redaction.json("") or "", "bytes", size)
            shown = _shown(body[:_BYTES_SHOWN].hex(" "), "bytes", size)
            return shown | {"cut": size > _BYTES_SHOWN}
        body = text
    seen = source.redaction.json(body) or ""
    if kind == "application/json":
        if len(seen) <= _MOST_SHOWN:
            with suppress(ValueError, RecursionError):
                seen = json.dumps(json.loads(seen), indent=2, ensure_ascii=False)
        return _shown(seen, "json", size)
    return _shown(seen, "text", size)


def _shown(text: str, kind: str, size: int) -> dict[str, Any]:
    cut = len(text) > _MOST_SHOWN
    return {"text": text[:_MOST_SHOWN], "kind": kind, "size": size, "cut": cut}
