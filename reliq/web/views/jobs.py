"""Views of consumers and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...admin import STAGES
from ...errors import NotFound
from ..page_request import PAGE, pager

if TYPE_CHECKING:
    from ...admin import BatchInfo
    from ..page_request import Source

# -- consumers


def consumers(source: Source) -> dict[str, Any]:
    """Return the data of all consumers, disconnected ones first; raises ReliqError."""
    known = source.inspector.consumers()
    known.sort(key=lambda item: (item.connected, item.host, item.id))
    skip = source.request.number("skip")
    shown = known[skip : skip + PAGE]
    return {
        "consumers": shown,
        "total": len(known),
        "pager": pager(source.request, shown, len(known)),
    }


def consumer(source: Source) -> dict[str, Any]:
    """Return the data of one consumer, and a page of its held messages; raises ReliqError."""
    name = source.request.text("id").partition("/")[0]  # without the number of the connection
    record = next((item for item in source.inspector.consumers() if item.id == name), None)
    if record is None:
        raise NotFound(
            f"no consumer {name!r}: it has ended; held messages return once a consumer is active"
        )
    held = source.inspector.held_by(name, limit=PAGE, cursor=source.cursor)
    return {"consumer": record, "held": held, "messages": source.hidden(held.found)}


def batches(source: Source) -> dict[str, Any]:
    """Return the data of all batches, newest first; raises ReliqError."""
    request = source.request
    stage = request.text("stage")
    listed = source.inspector.batches(
        PAGE + 1,
        request.number("skip"),
        name=request.text("name") or None,
        stage=stage if stage in STAGES else None,
    )
    page = pager(request, listed, None)
    return {"batches": listed[:PAGE], "untold": listed.unreachable, "pager": page, "stage": stage}


def batch(source: Source) -> dict[str, Any]:
    """Return the data of one batch, with failures or with jobs in one state; raises ReliqError."""
    request = source.request
    name, state, skip = request.text("id"), request.text("state"), request.number("skip")
    info = source.inspector.batch(name)
    if state in info.counts:
        jobs = source.inspector.jobs(name, state, PAGE + 1, skip)
        page = pager(request, jobs, info.counts[state])
        return {"batch": info, "state": state, "jobs": jobs[:PAGE], "pager": page}
    failures = source.inspector.job_failures(name, PAGE + 1, skip)
    page = pager(request, failures, None)
    return {"batch": info, "state": "", "failures": failures[:PAGE], "pager": page}


def shares(info: BatchInfo) -> list[tuple[str, float]]:
    """Return the shares of a batch's jobs for its progress bar: (class, share of 1)."""
    total = max(info.total, 1)
    counts = info.counts
    return [
        ("done", counts["succeeded"] / total),
        ("bad", info.bad / total),
        ("off", counts["cancelled"] / total),
        ("on", (counts["working"] + counts["retrying"]) / total),
    ]
