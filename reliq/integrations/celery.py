"""What only Celery knows: whether this process is a worker, whether it forks, which broker.

Celery is not a dependency. Nothing here imports it before the application did;
without it every question has its plain answer.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from .. import integrations
from ..message.queue_names import queue_of
from .outcomes import LEASE

if TYPE_CHECKING:
    from collections.abc import Callable


_PREFORK = "celery.concurrency.prefork"
_ELSEWHERE = frozenset({_PREFORK, "celery.concurrency.thread"})


def _apps() -> tuple[Any, ...]:
    state = sys.modules.get("celery._state")
    return () if state is None else tuple(state._get_active_apps())  # noqa: SLF001 - only it knows


class WorkerWatch:
    """Learns of the Celery workers of this process, one as a rule, from Celery's signals."""

    def __init__(self) -> None:
        # Replaced as a whole, never changed: threads look at it.
        self.consumers: tuple[weakref.ref[Any], ...] = ()
        """The workers that there are, or were; empty in a process without one."""
        self._connected = False
        self._connected_to_embedded = False
        self.at_child_end: Callable[[], object] = bool
        """What a child of a prefork pool does as it ends in order: it runs no atexit hooks."""

    def connect(self) -> None:
        """Listen for ``worker_ready``, which Celery sends before the first task is taken.

        And for each task that is received, and the end of a child of its pool.
        """
        if not self._connected and "celery.signals" in sys.modules:
            signals = sys.modules["celery.signals"]
            signals.worker_ready.connect(self._ready, weak=False)
            signals.worker_process_shutdown.connect(lambda **_: self.at_child_end(), weak=False)
            signals.task_received.connect(
                lambda request=None, **_: integrations.tell_the_eta(request), weak=False
            )
            self._connected = True
        testing = sys.modules.get("celery.contrib.testing.worker")
        if testing is not None and not self._connected_to_embedded:
            # Its worker sends no worker_ready.
            testing.test_worker_started.connect(
                lambda consumer=None, **_: self._ready(consumer), weak=False
            )
            self._connected_to_embedded = True
        if "celery.worker.control" in sys.modules:  # also that of a test, which is never "ready"
            integrations.show_what_waits()

    def _ready(self, sender: Any = None, **_: Any) -> None:
        if sender is None or sender in self._workers:
            return
        self.consumers = (*map(weakref.ref, self._workers), weakref.ref(sender))
        if type(sender.pool).__module__ == _PREFORK:
            integrations.forget_nothing(sender.pool)
        integrations.watch_over(sender)

    @property
    def _workers(self) -> list[Any]:
        return [found for known in self.consumers if (found := known()) is not None]

    @property
    def worker(self) -> bool:
        """Whether this process is a Celery worker."""
        return bool(self._workers)

    @property
    def begins(self) -> bool:
        """Whether this is a Celery worker that has taken no task yet, and no child of its pool."""
        billiard = sys.modules.get("billiard.process")
        if self.worker or (
            billiard is not None and billiard.current_process().name != "MainProcess"
        ):
            return False
        return any(app.loader.worker_initialized for app in _apps())

    @property
    def connects(self) -> bool:
        """Whether this is a Celery worker that begins, or has lost its connection and returns."""
        return self.begins or any(
            # The last of its steps is the event loop.
            item.blueprint.started < sum(step is not None for step in item.steps)
            for item in self._workers
        )

    @staticmethod
    def will_consume(queue: str, durable: bool) -> bool:
        """Whether this is a Celery worker, perhaps one that begins, and *queue* one of its own.

        Those that are not *durable* are: of its mailbox, of events and of replies.
        """
        return any(
            app.loader.worker_initialized and (not durable or queue in app.amqp.queues.consume_from)
            for app in _apps()
        )

    @property
    def busy(self) -> bool:
        """Whether this worker runs tasks, also such as were acknowledged when they began."""
        state = sys.modules.get("celery.worker.state")
        return self.worker and bool(getattr(state, "active_requests", None))

    def takes_from(self, transport: Any) -> bool:
        """Whether a worker itself, and no task of it, consumes over *transport*."""
        return self._taking_from(transport) is not None

    def _taking_from(self, transport: Any) -> Any | None:
        for consumer in self._workers:
            connection = getattr(consumer, "connection", None)
            if connection is not None and getattr(connection, "_transport", None) is transport:
                return consumer
        return None

    def dead_lettered(self, transport: Any, message: Any, error: Exception) -> bool | None:
        """Drop what the worker at *transport* was to do for *message*, which made it raise.

        Returns whether it had acknowledged or rejected the message before; None where
        the message is not at fault for *error*.
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

    @property
    def pool(self) -> str:
        """The pool of this worker (prefork, thread, gevent, solo ...); "" where this is none."""
        own = {name for name in self._pools if name.startswith("celery.concurrency.")}
        return ",".join(sorted(name.rpartition(".")[2] for name in own))

    @property
    def processes(self) -> int:
        """How many tasks this worker runs at a time; 0 where this is none."""
        return sum(int(getattr(item.pool, "num_processes", None) or 1) for item in self._workers)

    @property
    def running(self) -> dict[str, int]:
        """Tasks of this worker that run and are acknowledged, or are about to be: by queue."""
        found: dict[str, int] = {}
        state = sys.modules["celery.worker.state"]
        # Other threads change it; what no Python code is run for is copied in one piece.
        for reference in tuple(state.active_requests.data):
            request = reference()
            queue = getattr(getattr(request, "message", None), "queue", None)
            if queue and (request.acknowledged or not request.task.acks_late):
                found[queue_of(queue)] = found.get(queue_of(queue), 0) + 1
        return found

    def jobs_of(self, session: str) -> set[str] | None:
        """Return the ids of jobs that this worker runs, and *session* has taken, acked or not.

        None where this is no worker: what an application runs it tells nobody.
        """
        if not self.worker:
            return None
        state = sys.modules["celery.worker.state"]
        found = set()
        for reference in tuple(state.active_requests.data):
            request = reference()
            message = getattr(request, "message", None)
            if session in (getattr(message, "delivery_info", None) or {}).get(LEASE, ()):
                found.add(str(request.id))
        return found

    @property
    def forks(self) -> bool:
        """Whether the worker's pool forks children, so that threads are unwelcome."""
        return _PREFORK in self._pools

    @property
    def inline(self) -> bool:
        """Whether a task may run inside the delivery of its message, as in a solo pool."""
        pools = self._pools
        return not pools or any(name not in _ELSEWHERE for name in pools)

    @property
    def stopping(self) -> bool:
        """Whether this worker was asked to end, which its loop sees only between two turns."""
        state = sys.modules.get("celery.worker.state")
        # An exit code: 0 is one, and is not False.
        asked = (getattr(state, name, None) for name in ("should_stop", "should_terminate"))
        return any(code is not None and code is not False for code in asked)


WATCH = WorkerWatch()
