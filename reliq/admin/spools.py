"""Spools as an operator sees them: the publishes in a journal on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import Any

from ..errors import ConfigurationError, ReliqError
from ..spool.journal import ENDS, JOURNALS
from ..store.inspection import Finding
from ..units import duration

# Processes forward every few seconds where a broker answers.
_STUCK_S = 120.0


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """What is in a spool, and what became of what was in it (see ``ENDS``)."""

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


def spool_status(url: str) -> SpoolStatus:
    """Return what is in the spool at *url*, or at that path; raises ReliqError, makes no file."""
    journal = JOURNALS.at(url)
    if not journal.exists:
        raise ConfigurationError(f"{journal}: there is no such spool: nothing was published there")
    query = "SELECT exchange, routing_key, count(*), min(stored_ms) FROM publishes GROUP BY 1, 2"
    now_ms = time() * 1000
    routes = [
        {"exchange": exchange, "routing_key": key, "publishes": n, "oldest_s": age / 1000}
        for exchange, key, n, oldest_ms in journal.look(f"{query} ORDER BY min(id)")
        for age in [max(now_ms - oldest_ms, 0)]
    ]
    total = sum(route["publishes"] for route in routes)
    oldest_s = max((route["oldest_s"] for route in routes), default=0.0)
    counts = dict.fromkeys(ENDS, 0) | dict(journal.look("SELECT name, value FROM counts"))
    return SpoolStatus(str(journal), total, oldest_s, journal.size_bytes, routes, **counts)


def examine_spool(url: str) -> Finding:
    """Return what is to be said of the spool at *url*, with the remedy where something is wrong."""
    try:
        if not JOURNALS.at(url).exists:
            return Finding("spool", "ok", "nothing was ever published into the spool")
        status = spool_status(url)
    except ReliqError as exc:
        return Finding("spool", "error", str(exc), "correct the URL, or move the file away")
    if not status.publishes:
        return Finding("spool", "ok", f"{status.spool} is empty")
    said = f"{status.publishes} publishes wait in {status.spool}, the oldest for "
    return Finding(
        "spool",
        "warning" if status.oldest_s > _STUCK_S else "info",
        said + duration(status.oldest_s),
        "any process that lists the spool forwards them when a broker answers: start one, or "
        "run: reliq spool forward PATH --url BROKER",
    )
