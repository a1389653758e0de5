"""Jobs: what a channel tells the batches of the messages that it publishes.

A job is in its batch before its message is stored, so whoever hears of a message has a job to say
it of. Where the message was certainly not stored the job is taken out again; where that is not
known it stays, and the batch's passes find what is not there in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..errors import BatchClosed, NotFound
from ..integrations.outcomes import adding_job, job_of
from ..store.jobs import CANCELLED, DONE, SEALED, Change
from ..store.limits import BATCH as AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..routing.outgoing import Outgoing
    from ..routing.routes import Routes
    from ..store.jobs import State
    from ..store.protocol import Store


JobEntry: TypeAlias = "tuple[str, Change]"
"""A batch, and the change that enters a job into it."""


def entry_of(item: Outgoing, routes: Routes | None = None) -> JobEntry | None:
    """Return the batch of *item* and its entry, with a queue by *routes*; None for no job."""
    found = job_of(item.headers)
    if found is None or item.tag is None:
        return None
    batch, job, retries = found
    queues = item.route(routes)[0] if routes is not None else ()
    queue = queues[0] if queues else item.routing_key
    state: State = "delayed" if item.delay_ms > 0 else "waiting"
    return batch, Change("enter", job, state, retries, 0, str(item.tag), queue)


def enter(store: Store, entries: Sequence[JobEntry]) -> None:
    """Enter jobs into their batches; waits. Atomic for some hundred of one batch.

    Raises BatchClosed where a batch takes no more jobs, NotFound where the broker has no such
    batch; all that were entered by this are taken out again then. Raises BrokerUnavailable.
    """
    by_batch: dict[str, list[Change]] = {}
    for batch, change in entries:
        by_batch.setdefault(batch, []).append(change)
    entered: list[JobEntry] = []
    for batch, changes in by_batch.items():
        # They are published together: also where it takes several steps to enter them.
        changes[AT_ONCE:] = [change._replace(text="more") for change in changes[AT_ONCE:]]
        found = store.batches.change(batch, changes, by=adding_job(batch))
        if found is None:
            withdraw(store, entered)
            raise NotFound(
                f"batch {batch!r}: {store.broker} has no such batch: a batch and its jobs are "
                "published to one broker, and it is there until its batch_ttl is over; nothing "
                "was stored"
            )
        # Not those that were in it before: their messages may be stored.
        outcomes = zip(changes, found.outcomes, strict=True)
        entered += [(batch, change) for change, outcome in outcomes if outcome == DONE]
        refused = {code for code in found.outcomes if code in {SEALED, CANCELLED}}
        if refused:
            withdraw(store, entered)
            why = "cancelled" if CANCELLED in refused else "sealed"
            raise BatchClosed(
                f"batch {batch!r} is {why}: no job is added to it any more, but by its own while "
                f"they run (unless it is cancelled); {len(changes)} messages were not stored"
            )


def withdraw(store: Store, entries: Iterable[JobEntry]) -> None:
    """Take out jobs whose messages were certainly not stored; waits."""
    by_batch: dict[str, list[Change]] = {}
    for batch, change in entries:
        by_batch.setdefault(batch, []).append(change._replace(what="withdraw", state=""))
    for batch, changes in by_batch.items():
        store.batches.change(batch, changes)
