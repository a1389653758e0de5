"""The log of actions, and the operations that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import NotFound
from ..asked import PAGE
from .look import Pager

if TYPE_CHECKING:
    from ..asked import Asked
    from ..site import Site


def log(site: Site, asked: Asked) -> dict[str, Any]:
    """Return what the page of the log needs."""
    skip = asked.number("skip")
    entries = site.log.entries(PAGE, skip)
    total = len(site.log)
    return {
        "entries": entries,
        "operations": site.operations.all()[:10],
        "pager": Pager(skip, len(entries), total, skip + PAGE < total),
    }


def operation(site: Site, asked: Asked) -> dict[str, Any]:
    """Return what the page of one operation needs; raises NotFound."""
    found = site.operations.get(asked.text("id"))
    if found is None:
        raise NotFound("no such operation: it was begun by another process, or long ago")
    return {"item": found}
