"""Heartbeat: a consumer reports that it lives, its identity and its queues.

The broker's reply assigns duties for queues that other processes use.
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
from ..message.queue_names import queue_of
from ..values.protocol import NODE_PATIENCE_S
from .host import HOST

if TYPE_CHECKING:
    from ..options import Options
    from ..values.protocol import Store
    from ..values.values import Duties
    from .leases import Leases
    from .registration import Registration
    from .restore_passes import RestorePasses
    from .runner import Runner


# Time that a new consumer waits for the register's node of a cluster to confirm its entry.
_REGISTERED_WITHIN_S = 1.0
# The most tasks in the warning about unprotected ones.
_NAMED = 5
# Returns, dead-lettering and order use the options of the acting process, so all should agree.
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
    _runner: Runner

    def __post_init__(self) -> None:
        """Start outside the register."""
        options = self._options
        self.interval_s = min(20.0, max(options.visibility_timeout / 3, 1.0))
        self._shared_options = json.dumps({key: getattr(options, key) for key in _SHARED_OPTIONS})
        self._began = monotonic()
        self._next = 0.0
        self._registered = self._reported = False
        self._registered_as: tuple[str, object, dict[str, str]] | None = None
        self._pool = ""
        self._reported_failing: dict[str, str] = {}
        self._awaited = False
        self.stays = False
        """Whether this process remains in the register without consuming."""

    @property
    def vouches(self) -> bool:
        """Whether this process is in the register and holds messages or runs jobs.

        It then sends heartbeats however long its connection has been lost: a silent consumer is
        taken for dead, and its messages go to others.
        """
        return self._registered_as is not None and (self.stays or bool(self._leases.held))

    @property
    def run_id(self) -> str:
        """The run id of the server with this consumer's record; "" if it is not known."""
        return "" if self._registered_as is None else self._registered_as[2]["run_id"]

    def soon(self) -> None:
        """Report changes at the next tick."""
        self._next = 0.0

    def tick(self, store: Store) -> None:
        """Post a heartbeat if one is due or its contents have changed."""
        known = self._registered_as
        if (
            monotonic() >= self._next
            or known is None
            or known[:2] != (store.consumer, store.registered_by)
            or self._pool != HOST.pool()  # a worker has its pool after its first heartbeat
            or self._reported_failing != self._passes.failing
        ):
            self._post(store)

    def register(self, store: Store) -> None:
        """Enter this consumer in the register, as connected by *store*; waits.

        Over a cluster, waits only for the node of the register, and only for a short time.
        """
        self._awaited = True
        self._post(store)
        ends_at = monotonic() + _REGISTERED_WITHIN_S
        while self._awaited and monotonic() < ends_at:
            with store.patience(NODE_PATIENCE_S):
                store.wait_for_replies()

    def leave(self, store: Store) -> None:
        """Remove this consumer from the register, as its last subscription has ended.

        While it runs jobs, it *stays*: a sweep for lost jobs would otherwise take it for dead.
        No other consumer would run its acked jobs.
        """
        self.stays = bool(HOST.jobs_of(self._name))
        if not self.stays:
            self._registered, self._registered_as = False, None
            store.forget_consumer(self._name)

    def end_stay(self, store: Store) -> bool:
        """Leave the register if it only stays there and its jobs have ended; return whether."""
        if not self.stays:
            return False
        if self._registration.subscriptions:
            self.stays = False  # it consumes again
            return False
        self.leave(store)
        return not self.stays

    def _post(self, store: Store) -> None:
        known = self._registered_as
        if not self._reported and self._registration.is_for_work:
            self._reported = True
            logger.info(
                "consuming at %s as %s; its messages return %g s after the last renewal",
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
        self._pool = HOST.pool()
        self._reported_failing = self._passes.failing.copy()
        unprotected = HOST.unprotected()[:_NAMED]
        if unprotected and not HOST.warned:
            HOST.warned = True
            logger.warning(
                "if a pool process is killed, for example for its memory, its task does not run "
                "again: %s acknowledge late without task_reject_on_worker_lost; set "
                "task_reject_on_worker_lost = True",
                ", ".join(unprotected),
            )
        record = {
            **known[2],
            "pool": self._pool,
            "node": HOST.node(),
            "options": self._shared_options,
            "queues": "\n".join(self._registration.queues),
            "held": str(len(self._leases.held)),
            "processes": str(HOST.processes()),
            "enforces": "limits",
            "unprotected": "\n".join(unprotected),
            "failing": json.dumps(self._reported_failing),
        }
        ttl_ms = int(self.interval_s * 3000) + 1000
        again_ms = int(self.interval_s * 1000)
        store.post_heartbeat(self._name, ttl_ms, again_ms, record, partial(self._heard, store))
        self._running.post(store, again=True)

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
            self._passes.survey(store, strange)
        if result.new and self._registered:
            self._runner.soon(self._registration.come_back)
        self._registered = True


class RunningTasks:
    """Reports running tasks to the register, before early acks and after their end.

    Celery acks a task when it begins by default. The broker then holds nothing of the task, and
    its queue alone would show a busy worker as idle.
    """

    _lock = OwnLock()
    """Guards the last report. The broker ignores a report that a nested one has overtaken."""

    def begin(self, name: str) -> None:
        """Start as the consumer *name*, without any report."""
        self._name = name
        self._number = 0
        self._posted: dict[str, int] = {}

    def before_ack(self, store: Store, queue: str) -> None:
        """Report before an ack that a task of *queue* runs, once until :meth:`post` finds none."""
        queue = queue_of(queue)
        if not HOST.worker() or self._posted.get(queue):
            return
        with self._lock:
            running = HOST.running()
            if running.get(queue):
                self._post(store, running)

    def post(self, store: Store, again: bool = False) -> None:
        """Report the running tasks if they differ from the last report, or *again*."""
        if not HOST.worker():
            return
        with self._lock:
            before, self._posted = self._posted, {}
            # In this order: a task that begins now is seen here, or finds no report.
            running = HOST.running()
            if again or running != before:
                self._post(store, running)
            else:
                self._posted = running

    def _post(self, store: Store, running: dict[str, int]) -> None:
        number = self._number = self._number + 1
        on_reply = partial(self._reported, number)
        self._posted = running
        try:
            store.post_running(self._name, number, running, on_reply)
        except BrokerUnavailable:
            self._posted = {}
            raise  # this report, and then a following ack, use the next connection

    def _reported(self, number: int, known: bool | ReliqError) -> None:
        """Discard a report that failed, as the connection or the register was lost."""
        if known is not True and number == self._number:
            self._posted = {}
