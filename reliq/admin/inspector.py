"""Inspector: one broker, looked into and put right by an operator."""

from __future__ import annotations

import os
import socket
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..engines.urls import connect
from ..errors import BrokerRefused, BrokerUnavailable, NotFound, PreconditionFailed, require_one_of
from ..message.queue_arguments import is_durable
from ..routing.partitions import delete, in_each, names_of
from ..routing.routes import Routes
from ..store.protocol import status_of
from ..transfer.numbered import move_queue
from . import doctor, partitions
from .audit import AuditResult, audit
from .batches import JobBatches, require_page
from .dead_letters import DeadLetters
from .looking import Looking
from .names import STATES
from .partitions import Partial, for_each_queue, settings
from .reporting import Report, report, statuses
from .views import Message, of_stored
from .walking import page_of_parts, require_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..store.inspection import AnyPlace, BrokerInfo, Consumer, Finding, QueueStatus


class Inspector(DeadLetters, JobBatches, Looking, AbstractContextManager["Inspector"]):
    """Looks into one broker, controls its queues, puts dead letters right; a context manager.

    *url* and *transport_options* are those of the application. Raises
    ConfigurationError for a wrong one, BrokerUnavailable when it cannot connect.
    A partition of a queue may be looked at by its own name; what changes a queue refuses it
    with a ConfigurationError.

    lost_node_s: of a cluster, so long a command waits for a node that cannot be reached and has
    no replica that could take over; for others it waits for ``socket_timeout``. Defaults to 1.

    create: start the broker of a ``reliq-embedded://`` URL that does not run, for who is about to
    move messages into it. Without it that is an error. Defaults to False.
    """

    def __init__(
        self,
        url: str,
        transport_options: Mapping[str, Any] | None = None,
        *,
        create: bool = False,
        lost_node_s: float = 1.0,
    ) -> None:
        name = f"inspector:{socket.gethostname()}:{os.getpid()}"
        self._store = connect(url, transport_options, name, create=create, lost_node_s=lost_node_s)
        self.url = url
        """As it was given: with the password."""

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    @property
    def broker(self) -> str:
        """The name of the broker: its URL without user and password."""
        return self._store.broker

    def now_ms(self) -> int:
        """Return the broker's time, in ms since the epoch: what ages are measured by."""
        return self._store.now_ms()

    # -- looking

    def about(self) -> BrokerInfo:
        """Return what the broker says of itself: engine, role, memory, persistence."""
        return self._store.reads.about()

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        return partitions.names(self._store.queues())

    def durable_queues(self) -> list[str]:
        """Return the names of the durable queues: without auto_delete and x-expires."""
        found = partitions.merged(statuses(self._store, self._store.queues()))
        return [status.name for status in found if is_durable(status.declared)]

    def status(self, queue: str) -> QueueStatus:
        """Return counts and ledger of *queue*; raises NotFound.

        Each partition is read at one instant.
        """
        own = status_of(self._store, queue)
        others = map(self._store.reads.status, names_of(self._store, queue)[1:])
        (status,) = partitions.merged([own, *filter(None, others)])
        return replace(status, name=queue, arguments=own.declared)

    def report(self, since: Report | None = None) -> Report:
        """Return the broker and all its queues, with ages; with *since*, an earlier one, rates.

        Each queue is read at one instant. Of a cluster, queues at a node that does not answer
        are in ``untold``.
        """
        return report(self._store, since)

    def consumers(self) -> list[Consumer]:
        """Return the processes that consume from this broker, by id.

        One that was killed stays, as not connected, until another consumer of its queues
        has ended its leases (5 to 10 s), or its heartbeats have been missing for three
        times their interval. Not read at one instant.
        """
        return [
            replace(consumer, queues=tuple(partitions.names(consumer.queues)))
            for consumer in self._store.reads.consumers()
        ]

    def peek(
        self, queue: str, state: str = "ready", limit: int = 20, skip: int = 0
    ) -> Partial[Message]:
        """Return up to *limit* messages of *queue* after *skip*, and change nothing.

        state: ``ready`` (as they will be given out), ``delayed`` (by due time),
        ``unacked`` (by the end of the lease) or ``dead`` (oldest first). Bodies are not
        deserialised, and of messages beyond 64 KiB not read. Not read at one instant. Of a queue
        that is divided, what is beyond the first thousand is in no strict order, and there may be
        some more or less than *limit*. Partitions whose node does not answer are ``unreachable``.
        Raises NotFound, and ConfigurationError for a state there is not.
        """
        require_one_of("state", state, STATES)
        require_page(limit, skip)
        place: AnyPlace = state  # type: ignore[assignment]

        def look(names: Sequence[str]) -> list[Message]:
            require_queue(self._store, names[0])
            now_ms = self._store.now_ms()
            found = page_of_parts(self._store, names, place, limit, skip)
            return [of_stored(queue, place, item, now_ms) for item in found]

        return for_each_queue(self._store, queue, look)

    def audit(self) -> Partial[AuditResult]:
        """Check the ledger of every partition of every queue; lost ones are ``unreachable``."""
        return for_each_queue(
            self._store, None, lambda names: map(audit, statuses(self._store, names))
        )

    def doctor(self) -> list[Finding]:
        """Return each check of broker, rights, consumers, queues and ledgers, with its remedy.

        Takes up to some seconds on a broker with millions of keys.
        """
        found = self._store.reads.diagnose()
        try:
            return [*found, *doctor.examine(self._store)]
        except (BrokerRefused, BrokerUnavailable) as exc:
            # What was found so far says why, or comes near.
            return [*found, doctor.refused(exc)]

    # -- queues

    def pause(self, queue: str) -> None:
        """Let *queue* accept and keep messages, and give nothing out until it is resumed.

        Stored with the queue: it survives restarts. What consumers had reserved before is still
        delivered. Repeatable. Atomic; of a queue that is divided, for each partition, its own last.
        Raises NotFound, and BrokerUnavailable: where that names partitions whose nodes are away,
        the others are paused.
        """
        self._pause(queue, paused=True)

    def resume(self, queue: str) -> None:
        """Let *queue* give out again, and wake who waits; atomic, and raises, as :meth:`pause`."""
        self._pause(queue, paused=False)

    def _pause(self, queue: str, *, paused: bool) -> None:
        partitions.refuse_part(self._store, queue)
        there = in_each(self._store, queue, lambda name: self._store.pause(name, paused))
        if not there[-1]:
            raise NotFound(f"no queue {queue!r}")
        if len(there) > 1:
            # Who made or settled a partition meanwhile may have asked the queue's own before.
            in_each(self._store, queue, lambda name: self._store.pause(name, paused))

    def purge(self, queue: str) -> int:
        """Remove what waits in *queue*, ready and delayed, for good; return how many.

        What consumers hold and what is dead stays. Some hundred at a time; raises NotFound, and
        BrokerUnavailable: where that names partitions whose nodes are away, the others are empty.
        """
        partitions.refuse_part(self._store, queue)
        status_of(self._store, queue)
        return sum(in_each(self._store, queue, self._store.purge))

    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Delete *queue*, its bindings and all that is in it; return how many messages waited.

        if_empty, if_unused: raise PreconditionFailed while messages wait in it, while it
        has consumers. The deletion is atomic; raises NotFound, and BrokerUnavailable: before
        anything is deleted where the node of one of its partitions is away.
        """
        partitions.refuse_part(self._store, queue)
        partitions.require_nodes(self._store, queue)
        outcome, number = delete(self._store, queue, if_empty=if_empty, if_unused=if_unused)
        if outcome == "missing":
            raise NotFound(f"no queue {queue!r}")
        if outcome == "not_empty":
            raise PreconditionFailed(f"queue {queue!r} is not empty: {number} messages wait in it")
        if outcome == "in_use":
            raise PreconditionFailed(f"queue {queue!r} has {number} consumers")
        Routes(self._store).forget_queue(queue)
        return number

    def settings(self, queue: str) -> dict[str, Any]:
        """Return the arguments that hold for *queue* now: declared, or changed since."""
        return settings(self._store, queue)

    def configure(self, queue: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change arguments of *queue* while it is in use; return those that hold now.

        ``x-delivery-limit``, ``x-max-length``, ``x-message-ttl``, ``x-overflow``,
        ``x-partitions`` and ``x-visibility-timeout``; None: back to what was declared. They hold
        from the next publish, delivery or lease on, until the queue is deleted. Raises
        ConfigurationError, before anything is changed, and NotFound.
        """
        if changes:
            partitions.refuse_part(self._store, queue)
        return settings(self._store, queue, changes)

    def move(self, queue: str, target: Inspector) -> Iterator[int]:
        """Move what waits in *queue*, and its dead letters, to the broker of *target*.

        Yields how many messages went, step by step; what was not asked for stays. Each
        is stored there once: cut off at any point, the next call goes on. Raises
        NotFound, ConfigurationError where both are one broker, BrokerUnavailable.
        """
        names = names_of(self._store, queue)
        return (step for name in names for step in move_queue(self._store, target._store, name))
