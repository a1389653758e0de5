"""Heartbeat: a consumer says that it lives, who it is and what it consumes from.

The broker answers which duties it has for the queues of others.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from .._version import __version__
from ..errors import BrokerUnavailable, ReliqError, logger
from ..forks import OwnLock
from ..integrations.celery import WATCH
from ..message.queue_names import queue_of
from ..store.protocol import NODE_PATIENCE_S

if TYPE_CHECKING:
    from ..options import Options
    from ..store.protocol import Deferred, Store
    from ..store.values import Duties
    from .leases import Leases
    from .registration import Registration
    from .restore_passes import RestorePasses


# So long who begins to consume waits until the register's node says that it is noted there.
_REGISTERED_WITHIN_S = 1.0
# Whoever returns, dead-letters or orders a message goes by its own: all should have the same.
_SHARED_OPTIONS = (
    "visibility_timeout",
    "restore_interval",
    "orphan_grace",
    "delivery_limit",
    "redelivery_backoff",
    "dead_letter_max",
    "dead_letter_ttl",
    "priority_order",
)


@dataclass(eq=False)
class Heartbeat:
    """Keeps one consumer in the register."""

    _name: str
    _options: Options
    _leases: Leases
    _registration: Registration
    _running: RunningTasks
    _passes: RestorePasses
    _deferred: Deferred

    def __post_init__(self) -> None:
        """Begin as one that is not in it."""
        options = self._options
        self.interval_s = min(20.0, max(options.visibility_timeout / 3, 1.0))
        self._shared_options = json.dumps({key: getattr(options, key) for key in _SHARED_OPTIONS})
        self._began = monotonic()
        self._next = 0.0
        self._registered = self._told = False
        self._registered_as: tuple[str, object, dict[str, str]] | None = None
        self._pool = ""
        self._told_failing: dict[str, str] = {}
        self._awaited = False
        self.stays = False
        """Whether it consumes from nothing, and is in the register all the same."""

    @property
    def vouches(self) -> bool:
        """Whether this process is in the register and holds messages, or runs jobs.

        However long its connection has been gone: who is silent is taken for dead, and what it
        holds goes to others.
        """
        return self._registered_as is not None and (self.stays or bool(self._leases.held))

    def soon(self) -> None:
        """Have the next tick say what has changed."""
        self._next = 0.0

    def tick(self, store: Store) -> None:
        """Post a heartbeat where one is due, or what it says has changed."""
        known = self._registered_as
        if (
            monotonic() >= self._next
            or known is None
            or known[:2] != (store.consumer, store.registered_by)
            or self._pool != WATCH.pool  # a worker has its pool after its first heartbeat
            or self._told_failing != self._passes.failing
        ):
            self._post(store)

    def register(self, store: Store) -> None:
        """Enter this consumer in the register, as connected by *store*; waits.

        Not for other nodes, which may owe replies, too; and not for long for its own.
        """
        self._awaited = store.has_nodes
        self._post(store)
        if not store.has_nodes:
            store.wait_for_replies()
        ends_at = monotonic() + _REGISTERED_WITHIN_S
        while self._awaited and monotonic() < ends_at:
            store.wait_for_replies(NODE_PATIENCE_S)

    def leave(self, store: Store) -> None:
        """Take this consumer, which has no subscription any more, out of the register.

        While it runs jobs it *stays*: who looks for lost jobs would take it for dead. Those that
        are acknowledged have nobody else.
        """
        self.stays = bool(WATCH.jobs_of(self._name))
        if not self.stays:
            self._registered, self._registered_as = False, None
            store.forget_consumer(self._name)

    def end_stay(self, store: Store) -> bool:
        """Leave the register where it only stays there, and its jobs have ended; whether it did."""
        if not self.stays:
            return False
        if self._registration.subscriptions:
            self.stays = False  # it consumes again
            return False
        self.leave(store)
        return not self.stays

    def _post(self, store: Store) -> None:
        known = self._registered_as
        if not self._told and self._registration.is_for_work:
            self._told = True
            logger.info(
                "consuming at %s as %s; messages return %g s after it stops renewing them",
                store.broker,
                self._name,
                self._options.visibility_timeout,
            )
        if known is None or known[:2] != (store.consumer, store.registered_by):
            client_id, run_id = store.server()
            identity = {
                "host": socket.gethostname(),
                "pid": str(os.getpid()),
                "version": __version__,
                "client_id": client_id,
                "run_id": run_id,
                "started_ms": str(store.now_ms() - int((monotonic() - self._began) * 1000)),
            }
            known = self._registered_as = (store.consumer, store.registered_by, identity)
        self._next = monotonic() + self.interval_s
        self._pool = WATCH.pool
        self._told_failing = self._passes.failing.copy()
        record = {
            **known[2],
            "pool": self._pool,
            "options": self._shared_options,
            "queues": "\n".join(self._registration.queues),
            "held": str(len(self._leases.held)),
            "processes": str(WATCH.processes),
            "failing": json.dumps(self._told_failing),
        }
        ttl_ms = int(self.interval_s * 3000) + 1000
        again_ms = int(self.interval_s * 1000)
        store.post_heartbeat(self._name, ttl_ms, again_ms, record, partial(self._heard, store))
        self._running.tell(store, again=True)

    def _heard(self, store: Store, result: Duties | ReliqError) -> None:
        self._awaited = False
        if isinstance(result, ReliqError):
            return
        self._passes.dead_letter_routed = frozenset(result.dead_letter_routed)
        if result.more:
            self._next = 0.0
        subscriptions = self._registration.subscriptions
        strange = [queue for queue in result.due if queue not in subscriptions]
        if strange:
            self._passes.look_at(store, strange)
        if result.new and self._registered:
            self._deferred.append(self._registration.come_back)
        self._registered = True


class RunningTasks:
    """Tells the register, before the ack of a task that goes on and after its end.

    Celery acknowledges a task as it begins, unless it is told otherwise. From then on the broker
    holds nothing of it, and its queue alone would show a busy worker as idle.
    """

    _lock = OwnLock()

    def begin(self, name: str) -> None:
        """Begin as the consumer *name*, of which nothing was said."""
        self._name = name
        self._number = 0
        self._said: dict[str, int] = {}

    def before_ack(self, store: Store, queue: str) -> None:
        """Say before an ack that a task of *queue* goes on: once, until :meth:`tell` finds none."""
        queue = queue_of(queue)
        if not WATCH.worker or self._said.get(queue):
            return
        with self._lock:
            running = WATCH.running
            if running.get(queue):
                self._post(store, running)

    def tell(self, store: Store, again: bool = False) -> None:
        """Say what runs now, if it is not what was said last, or to say it *again*."""
        if not WATCH.worker:
            return
        with self._lock:
            said, self._said = self._said, {}
            # After that: a task that begins now is either seen here, or finds nothing said.
            running = WATCH.running
            if again or running != said:
                self._post(store, running)
            else:
                self._said = running

    def _post(self, store: Store, running: dict[str, int]) -> None:
        self._number += 1
        told = partial(self._told, self._number)
        self._said = running
        try:
            store.post_running(self._name, self._number, running, told)
        except BrokerUnavailable:
            self._said = {}
            raise  # an ack that follows goes out over the next connection, and this before it

    def _told(self, number: int, known: bool | ReliqError) -> None:
        """Note that it was not understood: the connection was lost, or the register was."""
        if known is not True and number == self._number:
            self._said = {}
