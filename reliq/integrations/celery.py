"""Facts from Celery: whether this process is a worker, whether it forks, which broker it uses.

Celery is not a dependency. This module never imports it before the application does. Without
Celery, every question has its default answer.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from .. import integrations
from ..consumer.host import HOST
from ..message.queue_names import queue_of
from ..values.job_headers import LEASE

_PREFORK = "celery.concurrency.prefork"
_ELSEWHERE = frozenset({_PREFORK, "celery.concurrency.thread"})


def _apps() -> tuple[Any, ...]:
    state = sys.modules.get("celery._state")
    return () if state is None else tuple(state._get_active_apps())  # noqa: SLF001 - only it knows


def _active_requests() -> list[Any]:
    # Other threads change them. A copy made without running Python code is consistent.
    references = tuple(sys.modules["celery.worker.state"].active_requests.data)
    return [reference() for reference in references]


class WorkerWatch:
    """Tracks the Celery workers of this process, usually one, through Celery's signals."""

    def __init__(self) -> None:
        # Replaced as a whole, never changed, because other threads read it.
        self.consumers: tuple[weakref.ref[Any], ...] = ()
        """The present and former workers; empty in a process without one."""
        self._connected = False
        self._connected_to_embedded = False
        self._fills = False

    def connect(self) -> None:
        """Answer for the host, and listen for Celery's signals.

        It sends ``worker_ready`` before the first task is received. The others are for received
        tasks, and for the end of a child of the pool.
        """
        if "gevent.monkey" in sys.modules:
            integrations.let_others_run()
        if "flower.utils.broker" in sys.modules:
            integrations.show_queues()
        if not self._fills:
            self._fills = True
            HOST.prepare = self.connect
            HOST.worker, HOST.begins, HOST.serves = self.worker, self.begins, self.serves
            HOST.connects, HOST.stopping, HOST.busy = self.connects, self.stopping, self.busy
            HOST.forks, HOST.inline, HOST.running = self.forks, self.inline, self.running
            HOST.will_consume, HOST.takes_from = self.will_consume, self.takes_from
            HOST.jobs_of, HOST.dropped, HOST.pool = self.jobs_of, self.dropped, self.pool
            HOST.node, HOST.processes, HOST.free = self.node, self.processes, self.free
            HOST.unprotected = self.unprotected
        if not self._connected and "celery.signals" in sys.modules:
            signals = sys.modules["celery.signals"]
            signals.worker_ready.connect(self._ready, weak=False)
            signals.worker_process_shutdown.connect(lambda **_: HOST.at_child_end(), weak=False)
            signals.task_received.connect(
                lambda request=None, **_: integrations.report_eta(request), weak=False
            )
            self._connected = True
        testing = sys.modules.get("celery.contrib.testing.worker")
        if testing is not None and not self._connected_to_embedded:
            # Its worker sends no worker_ready.
            testing.test_worker_started.connect(
                lambda consumer=None, **_: self._ready(consumer), weak=False
            )
            self._connected_to_embedded = True
        if "celery.worker.control" in sys.modules:  # also in tests, whose worker is never "ready"
            integrations.show_what_waits()

    def _ready(self, sender: Any = None, **_: Any) -> None:
        if sender is None or sender in self._workers:
            return
        self.consumers = (*map(weakref.ref, self._workers), weakref.ref(sender))
        HOST.worked = True
        if type(sender.pool).__module__ == _PREFORK:
            integrations.forget_nothing(sender.pool)
        integrations.watch_over(sender)

    @property
    def _workers(self) -> list[Any]:
        return [consumer for known in self.consumers if (consumer := known()) is not None]

    def worker(self) -> bool:
        """Whether this process is a Celery worker."""
        return bool(self._workers)

    def begins(self) -> bool:
        """Whether this Celery worker has received no task yet; False in a child of its pool."""
        billiard = sys.modules.get("billiard.process")
        if self.worker() or (
            billiard is not None and billiard.current_process().name != "MainProcess"
        ):
            return False
        return any(app.loader.worker_initialized for app in _apps())

    def serves(self) -> bool:
        """Whether this process belongs to a Celery worker: a starting one, or its pool's child."""
        return self.worker() or any(app.loader.worker_initialized for app in _apps())

    def connects(self) -> bool:
        """Whether this Celery worker is starting, or reconnects after a lost connection."""
        return self.begins() or any(
            # The event loop is the last of its steps.
            item.blueprint.started < sum(step is not None for step in item.steps)
            for item in self._workers
        )

    @staticmethod
    def will_consume(queue: str, durable: bool) -> bool:
        """Whether this is a Celery worker, possibly a starting one, that consumes from *queue*.

        True for every queue that is not *durable*: its mailbox, events and replies.
        """
        return any(
            app.loader.worker_initialized and (not durable or queue in app.amqp.queues.consume_from)
            for app in _apps()
        )

    def busy(self) -> bool:
        """Whether this worker runs tasks, including acked ones."""
        state = sys.modules.get("celery.worker.state")
        return self.worker() and bool(getattr(state, "active_requests", None))

    def takes_from(self, transport: Any) -> bool:
        """Whether a worker itself, and not one of its tasks, consumes over *transport*."""
        return self._taking_from(transport) is not None

    def _taking_from(self, transport: Any) -> Any | None:
        for consumer in self._workers:
            connection = getattr(consumer, "connection", None)
            if connection is not None and getattr(connection, "_transport", None) is transport:
                return consumer
        return None

    def dropped(self, transport: Any, message: Any, error: Exception) -> bool | None:
        """Drop the worker's work for *message*, which made the worker at *transport* raise.

        Returns whether the message was settled before; None if it has not caused *error*.
        """
        consumer = self._taking_from(transport)
        if consumer is None or not integrations.is_to_blame(consumer, error):
            return None
        settled = False
        for request in integrations.requests_of(message):
            settled = settled or bool(request.acknowledged)
            integrations.forget(request)
        return settled

    @property
    def _pools(self) -> list[str]:
        return [type(getattr(item, "pool", None)).__module__ for item in self._workers]

    def pool(self) -> str:
        """Return the pool of this worker (prefork, thread, solo ...); "" in other processes."""
        own = {name for name in self._pools if name.startswith("celery.concurrency.")}
        return ",".join(sorted(name.rpartition(".")[2] for name in own))

    def node(self) -> str:
        """Celery's name of this worker, such as celery@host; "" in other processes."""
        return ",".join(sorted({str(item.hostname) for item in self._workers if item.hostname}))

    def unprotected(self) -> list[str]:
        """Tasks of a prefork worker that do not run again if their pool process is killed."""
        workers = [item for item in self._workers if type(item.pool).__module__ == _PREFORK]
        tasks = [task for item in workers for task in item.app.tasks.values()]
        late = {task.name for task in tasks if task.acks_late and not task.reject_on_worker_lost}
        return sorted(name for name in late if not name.startswith("celery."))

    def processes(self) -> int:
        """How many tasks this worker runs at a time; 0 in other processes."""
        return sum(int(getattr(item.pool, "num_processes", None) or 1) for item in self._workers)

    def free(self) -> int:
        """How many further tasks this worker can start at once, after its pool has grown."""
        most = 0
        for item in self._workers:
            scaler = getattr(item.controller, "autoscaler", None)
            most += int(
                getattr(scaler or item.pool, "max_concurrency" if scaler else "num_processes", None)
                or 1
            )
        return most - len(sys.modules["celery.worker.state"].reserved_requests)

    def running(self) -> dict[str, int]:
        """Return the number of running tasks that are or will soon be acked, by queue.

        Without those of queues with limits, whose messages stay unacked until the end.
        """
        counts: dict[str, int] = {}
        for request in _active_requests():
            message = getattr(request, "message", None)
            queue = "" if getattr(message, "limited", False) else getattr(message, "queue", "")
            if queue and (request.acknowledged or not request.task.acks_late):
                counts[queue_of(queue)] = counts.get(queue_of(queue), 0) + 1
        return counts

    def jobs_of(self, session: str) -> set[str] | None:
        """Return the ids of jobs that this worker runs and *session* has received, acked or not.

        None in a process without a worker, where an application's jobs are not known.
        """
        if not self.worker():
            return None
        ids = set()
        for request in _active_requests():
            message = getattr(request, "message", None)
            if session in (getattr(message, "delivery_info", None) or {}).get(LEASE, ()):
                ids.add(str(request.id))
        return ids

    def forks(self) -> bool:
        """Whether the worker's pool forks children. Threads should then be avoided."""
        return _PREFORK in self._pools

    def inline(self) -> bool:
        """Whether a task may run inside the delivery of its message, as in a solo pool."""
        pools = self._pools
        return not pools or any(name not in _ELSEWHERE for name in pools)

    def stopping(self) -> bool:
        """Whether this worker must end, which its loop checks only between two turns."""
        state = sys.modules.get("celery.worker.state")
        # The value is an exit code: 0 is valid and differs from False.
        codes = (getattr(state, name, None) for name in ("should_stop", "should_terminate"))
        return any(code is not None and code is not False for code in codes)


WATCH = WorkerWatch()
