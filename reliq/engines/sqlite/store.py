"""The SQLite engine: one method per transaction; the parts are in files of their own."""

from __future__ import annotations

from .batches import SqliteBatches
from .claims import SqliteClaims
from .consuming import SqliteConsuming
from .dead_letters import SqliteDeadLetters
from .diagnosis import SqliteDiagnosis
from .exchanges import SqliteExchanges
from .history import SqliteHistory
from .job_events import SqliteJobEvents
from .leases import SqliteLeases
from .measuring import SqliteMeasuring
from .moves import SqliteMoves
from .operators import SqliteOperators
from .publishing import SqlitePublishing
from .queues import SqliteQueues
from .register import SqliteRegister
from .restoring import SqliteRestoring
from .scanning import SqliteScanning
from .subscriptions import SqliteSubscriptions
from .surveying import SqliteSurveying


class SqliteStore(
    SqlitePublishing,
    SqliteConsuming,
    SqliteLeases,
    SqliteRestoring,
    SqliteSurveying,
    SqliteRegister,
    SqliteSubscriptions,
    SqliteQueues,
    SqliteExchanges,
    SqliteDeadLetters,
    SqliteJobEvents,
    SqliteMoves,
    SqliteOperators,
    SqliteMeasuring,
    SqliteHistory,
    SqliteScanning,
    SqliteDiagnosis,
    SqliteClaims,
):
    """See :class:`reliq.store.protocol.Store`."""

    @property
    def batches(self) -> SqliteBatches:
        """The batches of jobs in this file."""
        # Not kept here: the store would be kept by it, until the garbage collector runs.
        return SqliteBatches(self)
