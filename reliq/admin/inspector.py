"""The Inspector, with which an operator reads and repairs one broker."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import BrokerRefused, BrokerUnavailable, PreconditionFailed, require_one_of
from ..integrations.connections import client_name
from ..message.queue_arguments import is_durable
from ..routing.partitions import delete, in_each, names_of
from ..routing.routes import Routes
from ..store.urls import connect, require_url
from ..transfer.numbered import move_queue
from ..values.inspection import Partial
from ..values.protocol import no_queue, status_of
from . import doctor, partitions
from .audit import AuditResult, audit
from .batches import JobBatches, require_page
from .dead_letters import DeadLetters
from .limits import QueueLimits, limits_of
from .lookups import Lookups
from .names import STATES
from .partitions import for_each_part
from .queue_settings import settings
from .reporting import Report, report
from .views import Message, of_stored
from .walking import page_of_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..values.inspection import AnyPlace, BrokerInfo, Consumer, Finding, QueueStatus


class Inspector(DeadLetters, JobBatches, Lookups, AbstractContextManager["Inspector"]):
    """Reads one broker, and manages its queues, dead letters and batches; a context manager.

    *url* and *transport_options* are those of the application. Raises ConfigurationError for
    invalid ones, and BrokerUnavailable if it cannot connect. Methods that only read accept the
    name of a partition; methods that change a queue refuse it with ConfigurationError.

    lost_node_s: seconds that a command waits for an unreachable cluster node without a replica
    that could take over; for other nodes, it waits for ``socket_timeout``. Defaults to 1.

    create: start the broker of a ``reliq-embedded://`` URL, for example as the target of a move.
    Otherwise, a broker that does not run is an error. Defaults to False.
    """

    def __init__(
        self,
        url: str,
        transport_options: Mapping[str, Any] | None = None,
        *,
        create: bool = False,
        lost_node_s: float = 1.0,
    ) -> None:
        name = client_name("inspector")
        self._store = connect(url, transport_options, name, create=create, lost_node_s=lost_node_s)
        self.url = url
        """The URL as given, including its password."""

    @staticmethod
    def require_url(url: str) -> None:
        """Raise ConfigurationError unless *url* is one of a broker; connects to nothing."""
        require_url(url)

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
        """Return the broker's time in ms since the epoch, by which ages are measured."""
        return self._store.now_ms()

    # -- reading

    def about(self) -> BrokerInfo:
        """Return engine, role, memory and persistence of the broker."""
        return self._store.reads.about()

    def queues(self) -> list[str]:
        """Return the names of all queues."""
        return partitions.names(self._store.queues())

    def durable_queues(self) -> list[str]:
        """Return the names of the durable queues: those without auto_delete and x-expires."""
        measures = partitions.merged_measures(self._store.reads.measure_all().whole())
        return [item.status.name for item in measures if is_durable(item.status.declared)]

    def status(self, queue: str) -> QueueStatus:
        """Return counts and ledger of *queue*; raises NotFound.

        Each partition is read at one instant.
        """
        own = status_of(self._store, queue)
        others = map(self._store.reads.status, names_of(self._store, queue)[1:])
        status = partitions.merged(queue, [own, *filter(None, others)])
        return replace(status, name=queue, arguments=own.declared)

    def report(self, since: Report | None = None) -> Report:
        """Return the broker and all its queues. With *since*, an earlier report, it has rates.

        Each queue is read at one instant. Queues on unreachable cluster nodes are in ``untold``.
        """
        return report(self._store, since)

    def limits(self, queue: str | None = None) -> Partial[QueueLimits]:
        """Return the limits of *queue*, or of each queue that has one, with their use now.

        Each queue is read at one instant. Queues on unreachable nodes are in ``unreachable``. A
        divided queue has no limits. Raises NotFound.
        """
        reads = self._store.reads
        if queue is not None:
            measures = reads.measure(partitions.parts_of(self._store, queue))
            return Partial(limits_of(partitions.merged_measures(measures)))
        measures = reads.measure_all()
        limits = limits_of(partitions.merged_measures(measures))
        return Partial((item for item in limits if item.limited), measures.unreachable)

    def consumers(self) -> list[Consumer]:
        """Return the processes that consume from this broker, by id.

        A killed consumer stays listed as not connected until another consumer of its queues has
        ended its leases (5 to 10 s), or its heartbeats have been missing for three intervals.
        Not read at one instant.
        """
        return [
            replace(consumer, queues=tuple(partitions.names(consumer.queues)))
            for consumer in self._store.reads.consumers()
        ]

    def peek(
        self, queue: str, state: str = "ready", limit: int = 20, skip: int = 0
    ) -> Partial[Message]:
        """Return up to *limit* messages of *queue* after *skip* others, without a change.

        state: ``ready`` (in delivery order), ``delayed`` (by due time), ``unacked`` (by the end
        of the lease) or ``dead`` (oldest first). Bodies are not deserialised, and not read if a
        message exceeds 64 KiB. Not read at one instant. In a partitioned queue, messages after the
        first thousand have no strict order, and their number may differ slightly from *limit*.
        Partitions on unreachable nodes are in ``unreachable``. Raises NotFound, and
        ConfigurationError for an unknown state.
        """
        require_one_of("state", state, STATES)
        require_page(limit, skip)
        place: AnyPlace = state  # type: ignore[assignment]

        def read(names: Sequence[str]) -> list[Message]:
            now_ms = self._store.now_ms()
            stored = page_of_parts(self._store, names, place, limit, skip)
            return [of_stored(queue, place, item, now_ms) for item in stored]

        return for_each_part(self._store, queue, read)

    def audit(self) -> Partial[AuditResult]:
        """Check the ledger of each queue or partition; lost ones are in ``unreachable``."""
        return self._store.reads.measure_all().each(lambda measure: audit(measure.status))

    def doctor(self) -> list[Finding]:
        """Return the findings about broker, permissions, consumers and queues, with remedies.

        Takes up to a few seconds on a broker with millions of keys.
        """
        findings = self._store.reads.diagnose()
        try:
            return [*findings, *doctor.examine(self._store)]
        except (BrokerRefused, BrokerUnavailable) as exc:
            # The findings so far usually show the cause.
            return [*findings, doctor.refused(exc)]

    # -- queues

    def pause(self, queue: str) -> None:
        """Stop deliveries from *queue* until it is resumed; it still accepts messages.

        The pause is stored with the queue, and survives restarts. Messages reserved before are
        still delivered. Repeatable. Atomic; partitions are paused one by one, partition 0 last.
        Raises NotFound, and BrokerUnavailable: if it names partitions on unreachable nodes, the
        others are paused.
        """
        self._pause(queue, paused=True)

    def resume(self, queue: str) -> None:
        """Resume deliveries, and wake waiting consumers; atomic, and raises, as :meth:`pause`."""
        self._pause(queue, paused=False)

    def _pause(self, queue: str, *, paused: bool) -> None:
        partitions.refuse_part(self._store, queue)
        there = in_each(self._store, queue, lambda name: self._store.pause(name, paused))
        if not there[-1]:
            raise no_queue(self._store, queue)
        if len(there) > 1:
            # A process that created or settled a partition meanwhile may have read the old state.
            in_each(self._store, queue, lambda name: self._store.pause(name, paused))

    def purge(self, queue: str) -> int:
        """Remove the ready and delayed messages of *queue* permanently; return their number.

        Messages held by consumers and dead letters stay. Some hundred at a time. Raises NotFound,
        and BrokerUnavailable: if it names partitions on unreachable nodes, the others are empty.
        """
        partitions.refuse_part(self._store, queue)
        status_of(self._store, queue)
        return sum(in_each(self._store, queue, self._store.purge))

    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Delete *queue*, its bindings and all its messages; return the number of waiting ones.

        if_empty: raise PreconditionFailed if messages wait. if_unused: raise PreconditionFailed if
        it has consumers. Atomic. Raises NotFound. Raises BrokerUnavailable before any deletion if
        the node of a partition is unreachable.
        """
        partitions.refuse_part(self._store, queue)
        partitions.require_nodes(self._store, queue)
        outcome, number = delete(self._store, queue, if_empty=if_empty, if_unused=if_unused)
        if outcome == "missing":
            raise no_queue(self._store, queue)
        if outcome == "not_empty":
            raise PreconditionFailed(f"queue {queue!r} is not empty: {number} messages wait in it")
        if outcome == "in_use":
            raise PreconditionFailed(f"queue {queue!r} has {number} consumers")
        Routes(self._store).forget_queue(queue)
        return number

    def settings(self, queue: str) -> dict[str, Any]:
        """Return the current arguments of *queue*: as declared, or changed since."""
        return settings(self._store, queue)

    def configure(self, queue: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change arguments of *queue* while it is in use; return the current ones.

        The arguments are ``x-concurrency``, ``x-delivery-limit``, ``x-max-length``,
        ``x-message-ttl``, ``x-overflow``, ``x-partitions``, ``x-rate`` and
        ``x-visibility-timeout``; None restores the declared value. They apply from the next
        publish, delivery or lease, until the queue is deleted.
        Raises NotFound, and ConfigurationError before any change.
        """
        if changes:
            partitions.refuse_part(self._store, queue)
        return settings(self._store, queue, changes)

    def move(self, queue: str, target: Inspector) -> Iterator[int]:
        """Move the waiting messages and dead letters of *queue* to the broker of *target*.

        Yields the number of each step; messages of steps not taken stay. Each message is stored
        there once: after an interruption, the next call continues. Raises NotFound,
        BrokerUnavailable, and ConfigurationError if both are the same broker.
        """
        names = names_of(self._store, queue)
        return (step for name in names for step in move_queue(self._store, target._store, name))
