"""For the people who run it: what is queued, held, delayed and dead, and how to put it right."""

from __future__ import annotations

from ..store.batch_info import BatchInfo, JobInfo
from ..store.history import Snapshot
from ..store.inspection import BrokerInfo, Consumer, DeadLetter, Finding, QueueStatus, Untold
from ..store.jobs import JobFailure
from .audit import Audit, AuditResult
from .batch_audit import BatchAudit
from .batches import BatchesUntold
from .dead_letter_groups import DeadLetterGroup, DeadLetterGroups
from .details import MessageDetails, MessageEvent
from .inspector import Inspector
from .permissions import ROLES, acl_rule
from .reporting import QueueReport, Report
from .search import Search
from .views import STATES, Message

__all__ = [
    "ROLES",
    "STATES",
    "Audit",
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
    "QueueReport",
    "QueueStatus",
    "Report",
    "Search",
    "Snapshot",
    "Untold",
    "acl_rule",
]
