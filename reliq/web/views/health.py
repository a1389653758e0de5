"""What the doctor finds, and whether every ledger balances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...admin.names import LEFT

if TYPE_CHECKING:
    from ...admin import Audit, AuditResult, Finding
    from ..watch import Checkup
    from .look import Look

_MOST = 200
_ORDER = {"error": 0, "warning": 1, "info": 2, "ok": 3}


@dataclass(frozen=True, slots=True)
class HealthView:
    """The health of a broker."""

    checkup: Checkup
    findings: list[Finding]
    """The worst first."""
    audit: Audit
    left: tuple[str, ...]
    """How a message may have left, in the order of the columns."""

    @property
    def shown(self) -> list[AuditResult]:
        """The first ledgers, those that do not balance before all others."""
        return sorted(self.audit.results, key=lambda result: result.balanced)[:_MOST]

    @property
    def unbalanced(self) -> int:
        """How many ledgers do not balance."""
        return sum(not result.balanced for result in self.audit.results)


def health(look: Look) -> HealthView:
    """Look now, which may take seconds; raises ReliqError."""
    checkup = look.watch.check_now(look.inspector)
    findings = sorted(checkup.findings, key=lambda finding: _ORDER[finding.severity])
    return HealthView(checkup, findings, look.inspector.audit_told(), LEFT)
