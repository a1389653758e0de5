"""For operators: inspect and repair queues, messages, dead letters and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of
from .names import ROLES, STATES

if TYPE_CHECKING:
    from ..batches.info import BatchInfo, JobInfo
    from ..batches.jobs import STAGES, JobFailure
    from ..values.history import Snapshot
    from ..values.inspection import (
        BatchesUntold,
        BrokerInfo,
        Consumer,
        DeadLetter,
        Finding,
        Partial,
        QueueStatus,
        Untold,
    )
    from .audit import AuditResult, BatchAudit
    from .dead_letter_choice import DeadLetterGroup, DeadLetterGroups
    from .inspector import Inspector
    from .limits import QueueLimits
    from .permissions import acl_rule
    from .reporting import QueueReport, Report
    from .views import Message, MessageDetails, MessageEvent
    from .walking import Search

__all__ = [
    "ROLES",
    "STAGES",
    "STATES",
    "AuditResult",
    "BatchAudit",
    "BatchInfo",
    "BatchesUntold",
    "BrokerInfo",
    "Consumer",
    "DeadLetter",
    "DeadLetterGroup",
    "DeadLetterGroups",
    "Finding",
    "Inspector",
    "JobFailure",
    "JobInfo",
    "Message",
    "MessageDetails",
    "MessageEvent",
    "Partial",
    "QueueLimits",
    "QueueReport",
    "QueueStatus",
    "Report",
    "Search",
    "Snapshot",
    "Untold",
    "acl_rule",
]

__getattr__ = names_of(
    __name__,
    {
        "..batches.info": "BatchInfo JobInfo",
        "..values.history": "Snapshot",
        "..values.inspection": "BatchesUntold BrokerInfo Consumer DeadLetter Finding Partial "
        "QueueStatus Untold",
        "..batches.jobs": "STAGES JobFailure",
        ".audit": "AuditResult BatchAudit",
        ".dead_letter_choice": "DeadLetterGroup DeadLetterGroups",
        ".inspector": "Inspector",
        ".limits": "QueueLimits",
        ".permissions": "acl_rule",
        ".reporting": "QueueReport Report",
        ".views": "Message MessageDetails MessageEvent",
        ".walking": "Search",
    },
)
