"""Declarations: what a transport declares, and declares again after the broker has lost it.

Routes record exchanges and their bindings. This module records queues.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t

from ..consumer.host import HOST
from ..errors import BrokerUnavailable, NotFound, PreconditionFailed, logger
from ..forks import here
from ..lazy import Lazy
from ..message.envelope import unpack
from ..message.queue_arguments import (
    DECLARED_LIMITS,
    FIELDS,
    declared_limits,
    differ_in_partitions,
    is_durable,
    queue_arguments,
    refuse_divided_limits,
)
from ..message.queue_names import partition_names
from ..printable import word
from ..routing.partitions import declare, delete, names_of, refuse_partition, waiting
from ..routing.spread import SPREAD
from ..values.protocol import Attempt, partly_reachable
from .mailboxes import Mailboxes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from ..routing.redeclare import Declared
    from ..values.protocol import Store
    from ..values.values import QueueDeclared
    from .link import Link


_BIND_TRIES = 5
# Patience of a starting worker with the node of a queue, and with a node known to be unreachable.
_LATE_AFTER_S, _UNREACHABLE_S = 2.0, 0.2
# Interval between attempts for a node that does not serve, but is not known to be unreachable.
_SETTLE_EVERY_S = 5.0


@dataclass(eq=False)
class Declarations:
    """Arguments and settings of each queue. Application threads use it, in single steps."""

    _link: Link
    _partitions: int
    queues: Declared = field(default_factory=dict, init=False)
    owed: dict[str, list[tuple[str, str]]] = field(default_factory=dict, init=False)
    """Pending bindings of each queue; they are declared when its node answers."""
    _settles_at: float = field(default=-inf, init=False)

    @Lazy
    def mailboxes(self) -> Mailboxes:
        """The mailboxes declared here."""
        return Mailboxes(self._link)

    def declare_queue(
        self, queue: str, auto_delete: bool, arguments: dict[str, Any] | None, passive: bool
    ) -> queue_declare_ok_t:
        """Declare *queue*; return its name, waiting messages and consumers.

        If the node is unreachable, a worker's queue is declared when the worker consumes from it,
        and a divided queue when the node answers; its other partitions accept publishes meanwhile.
        Other limits than those stored replace them, unless an operator has set them. Raises
        PreconditionFailed if the queue exists with other arguments (x-partitions may differ), and
        NotFound if *passive* and the queue is missing.
        """
        refuse_partition(queue)
        encoded, meta = queue_arguments(queue, auto_delete, arguments)
        if self._partitions > 1 and is_durable(meta) and DECLARED_LIMITS not in meta:
            meta.setdefault("partitions", str(self._partitions))  # without x-partitions
        here()  # after a fork, the child has its own link
        durable = is_durable(meta)
        try:
            with self.patience_with(queue, durable):
                stored_arguments = self._declare_now(queue, encoded, meta, passive)
        except BrokerUnavailable:
            store = self._link.store
            if passive or not (self.may_be_late(queue, durable) or SPREAD.divided(store, (queue,))):
                raise
            self.queues[queue] = (encoded, meta)
            self.owed[queue] = []
            return queue_declare_ok_t(queue, 0, 0)
        if not passive:
            self._note_declared(queue)
        return stored_arguments

    def _note_declared(self, queue: str) -> None:
        """Drop the pending work of *queue*, unless nodes of its partitions are unreachable."""
        if any(map(self._link.store.is_unreachable, self._names(queue))):
            self.owed[queue] = []
        else:
            self.owed.pop(queue, None)

    def _names(self, queue: str) -> Sequence[str]:
        return partition_names(queue, self._link.store.partitions.get(queue, 1))

    def _declare_now(
        self, queue: str, encoded: bytes, meta: dict[str, str], passive: bool
    ) -> queue_declare_ok_t:
        session, store, routes = self._link.session, self._link.store, self._link.routes
        if not (passive or is_durable(meta)):
            session.duties.dead_consumers.clear(queue, store)
        if ("expires" in meta or passive) and (
            store.delete_queue(queue, if_idle=True).outcome == "deleted"
        ):
            routes.forget_queue(queue)
        if passive:
            declared = store.declare_queue(queue, passive, encoded, meta)
        else:
            declared = self._declare(queue, encoded, meta, store)
        if declared.outcome == "missing":
            raise NotFound(f"no queue {queue!r}; declare it first")
        if declared.outcome == "differs":
            stored, wanted = _in_words(declared.arguments), _in_words(encoded)
            raise PreconditionFailed(
                f"queue {queue!r} exists with {stored}, but was now declared with {wanted}. "
                "Delete the queue, or declare it with the existing arguments"
            )
        if not passive:
            self.queues[queue] = (encoded, meta)
            if "dead_letter_exchange" in meta:
                session.duties.passes.route_dead_letters(queue)
        back = session.registration.lingers(queue)  # this process counts until it is back
        messages = declared.messages
        if is_durable(meta) and (passive or queue in store.partitions):
            messages += waiting(store, names_of(store, queue)[1:])
        return queue_declare_ok_t(queue, messages, max(declared.consumers - back, 0))

    def patience_with(
        self, queue: str, durable: bool | None = None
    ) -> AbstractContextManager[None]:
        """Wait only briefly for the node of *queue* if the declaration may be postponed."""
        store = self._link.store
        divided = store.partitions.get(queue, 1) > 1
        if not (store.has_nodes and (divided or self._is_workers(queue, durable))):
            return store.patience(inf)
        return store.patience(_UNREACHABLE_S if store.is_unreachable(queue) else _LATE_AFTER_S)

    def may_be_late(self, queue: str, durable: bool | None = None) -> bool:
        """Whether *queue* belongs to a Celery worker, and other nodes still answer."""
        return partly_reachable(self._link.store) and self._is_workers(queue, durable)

    def _is_workers(self, queue: str, durable: bool | None) -> bool:
        return HOST.will_consume(queue, self.may_stay(queue) if durable is None else durable)

    def may_stay(self, queue: str) -> bool:
        """Whether *queue* is durable, or was not declared here."""
        declared = self.queues.get(queue)
        return declared is None or is_durable(declared[1])

    def declare_owed(self, queue: str) -> None:
        """Declare and bind *queue* if this was postponed because its node was unreachable."""
        bindings = self.owed.get(queue)
        if bindings is None:
            return
        try:
            if queue in self.queues:
                self._declare_now(queue, *self.queues[queue], passive=False)
        except PreconditionFailed as exc:
            logger.error("%s; the existing queue is used", exc)  # noqa: TRY400 - the text suffices
        for exchange, routing_key in bindings:
            self._bind(queue, exchange, routing_key)
        self._note_declared(queue)

    def settle(self, exchange: str = "") -> None:
        """Declare and bind postponed queues whose nodes answer now; pauses after a failure.

        Raises BrokerUnavailable if *exchange* has pending bindings: a message would be dropped.
        """
        store, now = self._link.store, monotonic()
        for queue, bindings in list(self.owed.items()):
            exchanges = {name for name, _ in bindings}
            needed = exchange in exchanges
            if not needed and (
                now < self._settles_at
                or any(map(store.is_unreachable, [*self._names(queue), *exchanges]))
            ):
                continue
            try:
                with Attempt(store, inf if needed else _LATE_AFTER_S) as attempt:
                    self.declare_owed(queue)
            except NotFound as exc:
                self.owed.pop(queue, None)
                logger.error("cannot bind a queue although its node answers: %s", exc)  # noqa: TRY400 - the text suffices
            if attempt.lost:
                self._settles_at = monotonic() + _SETTLE_EVERY_S
                if needed:
                    attempt.raise_lost()

    def _declare(
        self, queue: str, arguments: bytes, meta: Mapping[str, str], store: Store
    ) -> QueueDeclared:
        declared = declare(store, queue, arguments, meta)
        if declared.outcome != "differs":
            self.declare_limits(queue, meta, store)
            return declared
        if not differ_in_partitions(declared.arguments, arguments):
            return declared
        self.declare_limits(queue, meta, store)
        # Keep the current number of partitions: x-partitions in code applies to new queues only.
        declared = declare(store, queue, declared.arguments, meta)
        wanted, there = int(meta.get("partitions", 1)), store.partitions.get(queue, 1)
        if wanted > 1 and wanted != there and store.has_partitions and queue not in self.queues:
            logger.warning(
                "queue %r was declared with x-partitions %d, but already exists with %d; to change "
                "it, run `reliq queue set %s --partitions %d`",
                queue,
                wanted,
                there,
                word(queue),
                wanted,
            )
        return declared

    @staticmethod
    def declare_limits(queue: str, meta: Mapping[str, str], store: Store) -> None:
        """Apply the limits that a declaration names to the queue, which exists.

        A limit that an operator has set is kept. Each difference is logged. Raises
        ConfigurationError for limits of a divided queue.
        """
        if DECLARED_LIMITS not in meta or not store.has_partitions:
            return
        there = store.configure(queue, {}) or {}
        before = declared_limits(there.get(DECLARED_LIMITS, ""))
        after = {**before, **declared_limits(meta[DECLARED_LIMITS])}
        old, new = (queue_arguments(queue, False, limits)[1] for limits in (before, after))
        if before != after:
            named = [name for name in after if FIELDS[name] in new]
            refuse_divided_limits(queue, named, int(there.get("partitions", 1)))
        changes: dict[str, str | None] = {}
        for name in after:
            held, limit = there.get(FIELDS[name]), new.get(FIELDS[name])
            if held == limit:
                continue
            text = _KEPT
            if held == old.get(FIELDS[name]):
                text, changes[FIELDS[name]] = _REPLACED, limit
            logger.warning(text, queue, name, limit or "none", held or "none", word(queue))
        if before != after:
            store.configure(queue, {**changes, DECLARED_LIMITS: new[DECLARED_LIMITS]})

    def delete_queue(self, queue: str, if_unused: bool, if_empty: bool) -> int:
        """Delete *queue* as :meth:`Channel.queue_delete` does; return its number of messages."""
        here()
        session, store, routes = self._link.session, self._link.store, self._link.routes
        session.registration.end_lingering(queue, store)
        deleted = delete(store, queue, if_empty=if_empty, if_unused=if_unused)
        if deleted.outcome == "not_empty":
            raise PreconditionFailed(f"queue {queue!r} is not empty: {deleted.number} messages")
        if deleted.outcome == "in_use":
            raise PreconditionFailed(f"queue {queue!r} is in use: {deleted.number} consumers")
        self.forget(queue)
        routes.forget_queue(queue)
        return deleted.number

    def forget(self, queue: str) -> None:
        """Record that *queue* was deleted, so that it is not declared again automatically."""
        self.queues.pop(queue, None)
        self.owed.pop(queue, None)
        self._link.session.registration.topology.forget_queue(queue)

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Bind *queue*; raises NotFound for an unknown exchange.

        If a node is unreachable, the binding is postponed until it answers; until then, nothing is
        published through *exchange*. A queue that this connection declared, and that has expired
        since because of a short ``x-expires``, is declared again.
        """
        refuse_partition(queue)
        store = self._link.store
        unreachable = store.is_unreachable(exchange) or store.is_unreachable(queue)
        with Attempt(
            store, _UNREACHABLE_S if unreachable or queue in self.owed else inf
        ) as attempt:
            self._bind(queue, exchange, routing_key)
        if attempt.lost:
            logger.info("%s; queue %r is bound when its node answers", attempt.lost, queue)
            self.owed.setdefault(queue, []).append((exchange, routing_key))

    def _bind(self, queue: str, exchange: str, routing_key: str) -> None:
        declared = self.queues.get(queue)
        if declared is None:
            self._link.routes.bind(queue, exchange, routing_key)
            return
        for _ in range(_BIND_TRIES):
            if self._link.routes.bind(queue, exchange, routing_key, present=True):
                return
            declare(self._link.store, queue, *declared)
        raise NotFound(f"queue {queue!r} expired before it was bound: increase its x-expires")

    def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Remove one binding; one that does not exist is ignored."""
        here()
        session, routes = self._link.session, self._link.routes
        session.registration.topology.forget_binding(queue, exchange, routing_key)
        routes.unbind(queue, exchange, routing_key)

    def delete_exchange(self, exchange: str, if_unused: bool) -> None:
        """Delete *exchange*; its queues stay, as in AMQP. Unknown exchanges are ignored.

        With *if_unused*, raises PreconditionFailed if the exchange has bindings.
        """
        here()
        session, store, routes = self._link.session, self._link.store, self._link.routes
        if if_unused and (count := len(store.exchange_table(exchange).bindings)):
            raise PreconditionFailed(f"exchange {exchange!r} is in use: {count} bindings")
        session.registration.topology.forget_exchange(exchange)
        routes.delete(exchange)

    def may_go_by_itself(self, queue: str) -> bool:
        """Whether *queue* is temporary, or was not declared here."""
        declared = self.queues.get(queue)
        return declared is None or not is_durable(declared[1])

    def redeclare(self, queue: str, store: Store) -> bool:
        """Declare a durable queue again that the broker lost; return False for any other queue."""
        if self.may_go_by_itself(queue):
            return False
        logger.warning("queue %r was lost by the broker and is declared again", queue)
        declare(store, queue, *self.queues[queue])
        self.restore_limits(queue, store)
        return True

    def declare_again(self, queue: str, store: Store) -> bool:
        """Declare and bind *queue* again; return False if this transport did not declare it."""
        declared = self.queues.get(queue)
        if declared is None:
            return False
        declare(store, queue, *declared)
        self.restore_limits(queue, store)
        self._link.routes.bind_again(queue, store)
        return True

    def restore_limits(self, queue: str, store: Store) -> None:
        """Apply the declared limits of *queue* to one that another process has made anew."""
        self.declare_limits(queue, self.queues.get(queue, (b"", {}))[1], store)

    def revive(self, queue: str) -> bool:
        """Declare a queue again that was deleted with its last consumer, this process."""
        session, store, routes = self._link.session, self._link.store, self._link.routes
        declared = session.registration.topology.revive(queue, routes, store)
        if declared is None:
            return False
        self.queues[queue] = declared
        return True


_REPLACED = "queue %r was declared with %s %s, which replaces %s; see `reliq limit show %s`"
_KEPT = (
    "queue %r was declared with %s %s, but an operator has set %s, which stays; to apply the "
    "declaration, run `reliq limit clear %s`"
)


def _in_words(declaration: bytes) -> str:
    return repr(unpack(declaration)) if declaration else "no arguments"
