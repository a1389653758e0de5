"""Jobs: what a channel tells the batches of the messages that it publishes and settles.

A job is in its batch before its message is stored, so whoever hears of a message has a job to say
it of. Where the message was certainly not stored the job is taken out again; where that is not
known it stays, and the batch's passes find what is not there in the end.

What a worker has learned of a task is left at its message (:mod:`..integrations.outcomes`). The
batch is told before the message is acknowledged, and the message waits for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import BatchClosed, NotFound
from ..integrations.celery import WATCH
from ..integrations.outcomes import BATCH, SUCCEEDED, Outcome, adding_job, job_of
from ..message.queue_names import queue_of
from ..store.jobs import CANCELLED, DONE, SEALED, Change
from ..store.limits import BATCH as AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..routing.outgoing import Outgoing
    from ..routing.routes import Routes
    from ..store.jobs import State
    from ..store.protocol import Store
    from .base import Transport
    from .message import Message
    from .qos import QoS


@dataclass(eq=False)
class JobEnds:
    """Tells batches how the jobs of one channel's messages have ended."""

    _over: Transport
    _qos: QoS

    def ack(self, message: Message) -> None:
        """Have the batch told how the job has ended, and the message acknowledged after that.

        Where nothing is known of it the task is acknowledged as it begins, and the batch is told
        that: so either there is a message, or somebody works on the job. Or it will be tried
        again; one that has not begun was revoked. An ack of a consumer that is no Celery worker
        says that the work is done.
        """
        change = self._change(message) or self._begin(message)
        if change is None:
            self._acknowledge(message)
            return
        # It is kept alive: of one that nobody has the lease is given up.
        self._report(message, change, partial(self._acknowledge, message))

    def tell(self, message: Message) -> None:
        """Have the batch told how the job of a message has ended that is settled already."""
        if message.outcome is not None:
            change = self._change(message)
            if change is not None:
                self._report(message, change)

    def returned(self, message: Message) -> None:
        """Have the batch told that the job waits again: its message went back."""
        message.outcome = None
        found = job_of(message.headers)
        if found is not None and message.begun:
            _, job, retries = found
            self._report(message, Change("return", job, "", retries, int(message.token)))

    def _begin(self, message: Message) -> Change | None:
        found = job_of(message.headers)
        if found is None or not message.acked_early:
            return None
        _, job, retries = found
        # As its child says it, so that whoever comes second says nothing new.
        where = retries, int(message.token), message.delivery_tag, queue_of(message.queue)
        return Change("begin", job, "", *where, self._over.link.session.id)

    def _change(self, message: Message) -> Change | None:
        found = job_of(message.headers)
        outcome, message.outcome = message.outcome, None
        if found is None or (outcome is None and message.begun):
            return None
        _, job, retries = found
        where = retries, int(message.token), message.delivery_tag, message.queue
        if outcome is None and WATCH.takes_from(self._over):
            # Celery's worker revokes what has expired.
            why = "revoked or expired" if message.headers.get("expires") else "revoked"
            outcome = Outcome("cancelled", why)
        state, text = outcome or SUCCEEDED
        return Change("end", job, state, *where, text)

    def _report(self, message: Message, change: Change, then: Any = None) -> None:
        # Nobody reads the replies to a closed channel: what sends debts reports it, and reads them.
        link = self._over.link
        store = None if self._qos.closed else link.store
        link.session.reports.report(store, message.headers[BATCH], change, then)

    def _acknowledge(self, message: Message) -> None:
        tags = (message.delivery_tag,)
        if self._qos.closed:
            self._over.link.session.outbox.ack_later(message.queue, tags)
        else:
            self._over.loop.ack(message.queue, tags)


JobEntry: TypeAlias = "tuple[str, Change]"
"""A batch, and the change that enters a job into it."""


def entry_of(item: Outgoing, routes: Routes | None = None) -> JobEntry | None:
    """Return the batch of *item* and what enters it there; None where it is no job.

    With *routes* its queue is looked up; to be withdrawn it needs none.
    """
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
