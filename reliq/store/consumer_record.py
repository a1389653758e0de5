"""What a consumer says of itself in the register: the fields of its record, and their reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .inspection import Consumer
from .unreadable import counts, mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .values import Liveness

FIELDS = (
    "host",
    "pid",
    "version",
    "started_ms",
    "held",
    "pool",
    "options",
    "running",
    "processes",
    "failing",
)
"""Those that :func:`consumer_of` reads."""


def consumer_of(name: str, seen_ms: int, liveness: Liveness, record: Mapping[str, str]) -> Consumer:
    """Return what *record* says; raises ValueError, RecursionError for one that is none."""
    return Consumer(
        id=name,
        host=record["host"],
        pid=int(record.get("pid") or 0),
        version=record.get("version") or "0",
        queues=liveness.queues,
        started_ms=int(record.get("started_ms") or 0),
        seen_ms=seen_ms,
        held=int(record.get("held") or 0),
        connected=liveness.connected,
        pool=record.get("pool", ""),
        options=mapping(record.get("options")),
        running=counts(record.get("running")),
        processes=int(record.get("processes") or 0),
        failing=mapping(record.get("failing")),
    )
