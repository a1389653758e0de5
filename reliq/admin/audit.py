"""The ledger: what was published is what left and what is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .names import LEFT, STATES

if TYPE_CHECKING:
    from ..store.inspection import QueueStatus


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The ledger of one queue: published = what left + what is here."""

    queue: str
    balanced: bool
    difference: int
    """published minus everything that is accounted for: above 0, messages are missing."""
    ledger: dict[str, int]
    counts: dict[str, int]


def audit(status: QueueStatus) -> AuditResult:
    """Compare the ledger of one queue with what is there; both were read at one instant."""
    counts = {name: int(getattr(status, name)) for name in STATES}
    left = {name: status.ledger.get(name, 0) for name in LEFT}
    published = status.ledger.get("published", 0)
    difference = published - sum(left.values()) - sum(counts.values())
    # Every envelope belongs to a message that is somewhere, and the other way round.
    difference = difference or sum(counts.values()) - status.stored
    return AuditResult(
        status.name, difference == 0, difference, {"published": published, **left}, counts
    )
