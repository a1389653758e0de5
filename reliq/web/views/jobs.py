"""Views of consumers and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...admin import STAGES
from ...errors import NotFound
from ..asked import PAGE, pager

if TYPE_CHECKING:
    from ...admin import BatchInfo
    from ..asked import Look

# -- consumers


def consumers(look: Look) -> dict[str, Any]:
    """Return the data of all consumers, disconnected ones first; raises ReliqError."""
    found = sorted(look.inspector.consumers(), key=lambda one: (one.connected, one.host, one.id))
    skip = look.asked.number("skip")
    shown = found[skip : skip + PAGE]
    return {
        "consumers": shown,
        "total": len(found),
        "pager": pager(look.asked, shown, len(found)),
    }


def consumer(look: Look) -> dict[str, Any]:
    """Return the data of one consumer, and a page of its held messages; raises ReliqError."""
    name = look.asked.text("id").partition("/")[0]  # without the number of the connection
    found = next((one for one in look.inspector.consumers() if one.id == name), None)
    if found is None:
        raise NotFound(
            f"no consumer {name!r}: it has ended; held messages return once a consumer is active"
        )
    held = look.inspector.held_by(name, limit=PAGE, cursor=look.cursor)
    return {"consumer": found, "held": held, "messages": look.hidden(held.found)}


def batches(look: Look) -> dict[str, Any]:
    """Return the data of all batches, newest first; raises ReliqError."""
    asked = look.asked
    stage = asked.text("stage")
    found = look.inspector.batches(
        PAGE + 1,
        asked.number("skip"),
        name=asked.text("name") or None,
        stage=stage if stage in STAGES else None,
    )
    page = pager(asked, found, None)
    return {"batches": found[:PAGE], "untold": found.unreachable, "pager": page, "stage": stage}


def batch(look: Look) -> dict[str, Any]:
    """Return the data of one batch, with failures or with jobs in one state; raises ReliqError."""
    asked = look.asked
    name, state, skip = asked.text("id"), asked.text("state"), asked.number("skip")
    found = look.inspector.batch(name)
    if state in found.counts:
        jobs = look.inspector.jobs(name, state, PAGE + 1, skip)
        page = pager(asked, jobs, found.counts[state])
        return {"batch": found, "state": state, "jobs": jobs[:PAGE], "pager": page}
    failures = look.inspector.job_failures(name, PAGE + 1, skip)
    page = pager(asked, failures, None)
    return {"batch": found, "state": "", "failures": failures[:PAGE], "pager": page}


def shares(found: BatchInfo) -> list[tuple[str, float]]:
    """Return the shares of a batch's jobs for its progress bar: (class, share of 1)."""
    total = max(found.total, 1)
    counts = found.counts
    return [
        ("done", counts["succeeded"] / total),
        ("bad", found.bad / total),
        ("off", counts["cancelled"] / total),
        ("on", (counts["working"] + counts["retrying"]) / total),
    ]
