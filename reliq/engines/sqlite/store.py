"""The SQLite engine: one method per step; the parts are in files of their own."""

from __future__ import annotations

from .claims import SqliteClaims
from .consuming import SqliteConsuming
from .dead_letters import SqliteDeadLetters
from .diagnosis import SqliteDiagnosis
from .measuring import SqliteMeasuring
from .moves import SqliteMoves
from .operators import SqliteOperators
from .publishing import SqlitePublishing
from .register import SqliteRegister
from .returning import SqliteReturning
from .surveying import SqliteSurveying
from .topology import SqliteTopology


class SqliteStore(
    SqlitePublishing,
    SqliteConsuming,
    SqliteReturning,
    SqliteSurveying,
    SqliteRegister,
    SqliteTopology,
    SqliteDeadLetters,
    SqliteMoves,
    SqliteOperators,
    SqliteMeasuring,
    SqliteDiagnosis,
    SqliteClaims,
):
    """See :class:`reliq.store.protocol.Store`."""
