"""Jobs: how a channel enters its published messages into their batches.

A job enters its batch before its message is stored, so a consumer of the message always finds the
job. If the message was certainly not stored, the job is withdrawn. If that is uncertain, the job
stays, and the batch's passes detect a missing message later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..errors import BatchClosed, NotFound
from ..values.job_headers import adding_job, job_of
from ..values.limits import BATCH as AT_ONCE
from .jobs import CANCELLED, DONE, SEALED, Change, by_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..routing.outgoing import Outgoing
    from ..routing.routes import Routes
    from ..values.protocol import Store
    from .jobs import State


JobEntry: TypeAlias = "tuple[str, Change]"
"""A batch, and the change that adds a job to it."""


def entry_of(item: Outgoing, routes: Routes | None = None) -> JobEntry | None:
    """Return the batch of *item* and its entry, with a queue from *routes*; None for no job."""
    membership = job_of(item.headers)
    if membership is None or item.tag is None:
        return None
    batch, job, retries = membership
    queues = item.route(routes)[0] if routes is not None else ()
    queue = queues[0] if queues else item.routing_key
    state: State = "delayed" if item.delay_ms > 0 else "waiting"
    return batch, Change("enter", job, state, retries, 0, str(item.tag), queue)


def enter(store: Store, entries: Sequence[JobEntry]) -> None:
    """Add jobs to their batches; waits. Atomic for some hundred jobs of one batch.

    Raises BatchClosed for a batch that takes no more jobs, and NotFound for an unknown batch; the
    jobs added by this call are then withdrawn. Raises BrokerUnavailable.
    """
    entered: list[JobEntry] = []
    for batch, changes in by_batch(entries).items():
        # The jobs are published together, even if adding them takes several steps.
        changes[AT_ONCE:] = [change._replace(text="more") for change in changes[AT_ONCE:]]
        result = store.batches.change(batch, changes, by=adding_job(batch))
        if result is None:
            withdraw(store, entered)
            raise NotFound(
                f"batch {batch!r}: {store.broker} has no such batch: a batch and its jobs must be "
                "published to the same broker, and the batch is deleted after its batch_ttl; "
                "nothing was stored"
            )
        # Exclude jobs that were added before: their messages may be stored.
        outcomes = zip(changes, result.outcomes, strict=True)
        entered += [(batch, change) for change, outcome in outcomes if outcome == DONE]
        refused = {code for code in result.outcomes if code in {SEALED, CANCELLED}}
        if refused:
            withdraw(store, entered)
            why = "cancelled" if CANCELLED in refused else "sealed"
            raise BatchClosed(
                f"batch {batch!r} is {why}: only its own running jobs can add jobs, and none can "
                f"if it is cancelled; {len(changes)} messages were not stored"
            )


def withdraw(store: Store, entries: Iterable[JobEntry]) -> None:
    """Remove jobs whose messages were certainly not stored; waits."""
    gone = ((batch, change._replace(what="withdraw", state="")) for batch, change in entries)
    for batch, changes in by_batch(gone).items():
        store.batches.change(batch, changes)
