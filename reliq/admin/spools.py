"""Spools as an operator sees them: the publishes in a journal on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import Any

from ..errors import ConfigurationError, ReliqError
from ..options import parse
from ..spool.journal import JOURNALS, SCHEME
from ..store.inspection import Finding
from ..units import duration

# Processes forward every few seconds where a broker answers.
_STUCK_S = 120.0
_ROUTE = ("exchange", "routing_key", "publishes", "oldest_s")


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """What is in a spool, and what became of what was in it."""

    spool: str
    publishes: int
    oldest_s: float
    bytes: int
    routes: list[dict[str, Any]]
    """By exchange and routing key: how many, and the age of the oldest."""
    forwarded: int
    expired: int
    dropped: int
    doubtful: int
    """Those that were forwarded and may be stored twice."""


def spool_status(url: str) -> SpoolStatus:
    """Return what is in the spool at *url*, or at that path; raises ReliqError, makes no file."""
    journal = JOURNALS.at_url(url, parse(None))
    if not journal.exists:
        raise ConfigurationError(f"{journal}: there is no such spool: nothing was published there")
    now_ms = time() * 1000
    routes: list[dict[str, Any]] = [
        dict(zip(_ROUTE, (*route, max(now_ms - oldest_ms, 0) / 1000), strict=True))
        for *route, oldest_ms in journal.waiting()
    ]
    total = sum(route["publishes"] for route in routes)
    oldest_s = max((route["oldest_s"] for route in routes), default=0.0)
    counts = journal.counts()
    journal.close()
    return SpoolStatus(str(journal), total, oldest_s, journal.size_bytes, routes, **counts)


def examine_spool(url: str) -> Finding:
    """Return what is to be said of the spool at *url*, with the remedy where something is wrong."""
    if not JOURNALS.at_url(url, parse(None)).exists:
        return Finding("spool", "ok", "nothing was ever published into the spool")
    try:
        status = spool_status(url)
    except ReliqError as exc:
        return Finding("spool", "error", str(exc), "correct the URL, or move the file away")
    if not status.publishes:
        return Finding("spool", "ok", f"{status.spool} is empty")
    age = duration(status.oldest_s)
    said = f"{status.publishes} publishes wait in {status.spool}, the oldest for {age}"
    if status.oldest_s < _STUCK_S:
        remedy = "they are forwarded by any process that lists the spool when a broker answers"
        return Finding("spool", "info", said, remedy)
    remedy = "start a process that lists the spool, or: reliq spool forward PATH --url BROKER"
    return Finding("spool", "warning", said, remedy)


def is_spool(url: str) -> bool:
    """Whether *url* is that of a spool, which is no broker."""
    return url.startswith(f"{SCHEME}:")
