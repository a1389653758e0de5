"""What only Celery knows: whether this process is a worker, whether it forks, which broker.

Celery is not a dependency. Nothing here imports it before the application did;
without it every question has its plain answer.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from ..errors import BrokerUnavailable, ConfigurationError
from .prefork import forget_nothing
from .requests import forget, is_to_blame, requests_of, tell_the_eta, watch_over
from .scheduled import show_what_waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..store import Store


class WorkerWatch:
    """Learns of the Celery worker in this process from Celery's own signal."""

    def __init__(self) -> None:
        self._consumer: weakref.ref[Any] | None = None
        self._connected = False
        self.at_child_end: Callable[[], None] | None = None
        """What a child of a prefork pool does as it ends in order: it runs no atexit hooks."""

    def connect(self) -> None:
        """Listen for ``worker_ready``, which Celery sends before the first task is taken.

        And for each task that is received, and the end of a child of its pool.
        """
        if not self._connected and "celery.signals" in sys.modules:
            signals = sys.modules["celery.signals"]
            signals.worker_ready.connect(self._ready, weak=False)
            signals.worker_process_shutdown.connect(self._child_ends, weak=False)
            signals.task_received.connect(tell_the_eta, weak=False)
            self._connected = True
        if "celery.worker.control" in sys.modules:  # also that of a test, which is never "ready"
            show_what_waits()

    def _child_ends(self, **_: Any) -> None:
        if self.at_child_end is not None:
            self.at_child_end()

    def _ready(self, sender: Any = None, **_: Any) -> None:
        self._consumer = None if sender is None else weakref.ref(sender)
        if sender is not None:
            if self.forks:
                forget_nothing(sender.pool)
            watch_over(sender)

    @property
    def worker(self) -> bool:
        """Whether this process is a Celery worker."""
        return self._consumer is not None and self._consumer() is not None

    @property
    def busy(self) -> bool:
        """Whether this worker runs tasks, also such as were acknowledged when they began."""
        state = sys.modules.get("celery.worker.state")
        return self.worker and bool(getattr(state, "active_requests", None))

    def takes_from(self, transport: Any) -> bool:
        """Whether the worker itself, and no task of it, consumes over *transport*."""
        consumer = None if self._consumer is None else self._consumer()
        connection = getattr(consumer, "connection", None)
        return connection is not None and getattr(connection, "_transport", None) is transport

    def given_up(self, message: Any, error: Exception) -> bool | None:
        """Give up, in the worker, what it was to do for *message*, which made it raise *error*.

        Returns whether it had acknowledged or rejected the message before; None where
        the message is not at fault.
        """
        consumer = None if self._consumer is None else self._consumer()
        if consumer is None or not is_to_blame(consumer, error):
            return None
        settled = False
        for request in requests_of(message):
            settled = settled or bool(request.acknowledged)
            forget(request)
        return settled

    @property
    def _pool(self) -> str:
        consumer = None if self._consumer is None else self._consumer()
        return type(getattr(consumer, "pool", None)).__module__

    @property
    def pool(self) -> str:
        """The pool of this worker (prefork, thread, gevent, solo ...); "" where this is none."""
        module = self._pool
        return module.rpartition(".")[2] if module.startswith("celery.concurrency.") else ""

    @property
    def processes(self) -> int:
        """How many tasks this worker runs at a time; 0 where this is none."""
        consumer = None if self._consumer is None else self._consumer()
        return 0 if consumer is None else int(getattr(consumer.pool, "num_processes", None) or 1)

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
                found[queue] = found.get(queue, 0) + 1
        return found

    @property
    def forks(self) -> bool:
        """Whether the worker's pool forks children, so that threads are unwelcome."""
        return self._pool == "celery.concurrency.prefork"

    @property
    def inline(self) -> bool:
        """Whether a task may run inside the delivery of its message, as in a solo pool."""
        return self._pool not in {"celery.concurrency.prefork", "celery.concurrency.thread"}

    @property
    def stopping(self) -> bool:
        """Whether this worker was asked to end, which its loop sees only between two turns."""
        state = sys.modules.get("celery.worker.state")
        # An exit code: 0 is one, and is not False.
        asked = (getattr(state, name, None) for name in ("should_stop", "should_terminate"))
        return any(code is not None and code is not False for code in asked)


WATCH = WorkerWatch()


def current_connection() -> Any | None:
    """Return a Kombu connection, not opened, to the broker of the current application.

    None where the application has not imported Celery.
    """
    celery = sys.modules.get("celery")
    return None if celery is None else celery.current_app.connection_for_write()


def store_factory(transport: Any) -> Callable[[str], Store]:
    """Return what opens a store as *transport* does; raises ConfigurationError."""
    if not hasattr(transport, "store_factory"):
        raise ConfigurationError(
            f"expected a reliq broker, got one of {type(transport).__module__}: give its url"
        )
    factory: Callable[[str], Store] = transport.store_factory()
    return factory


def open_store(connection: Any, name: str) -> Store:
    """Return a store of the first broker of a Kombu *connection* that answers, connected.

    Raises BrokerUnavailable where none does, ConfigurationError where one is not of reliq.
    """
    for last in [False] * (len(connection.alt) - 1) + [True]:
        transport = connection.transport
        factory = store_factory(transport)
        transport.close_connection(None)
        store = factory(name)
        try:
            store.connect()
        except BrokerUnavailable:
            if last:
                raise
            connection.maybe_switch_next()
        else:
            return store
    raise AssertionError
