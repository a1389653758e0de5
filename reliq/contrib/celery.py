"""What only Celery knows: whether this process is a worker, whether it forks, which broker.

Celery is not a dependency. Nothing here imports it before the application did;
without it every question has its plain answer.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from .prefork import forget_nothing


class WorkerWatch:
    """Learns of the Celery worker in this process from Celery's own signal."""

    def __init__(self) -> None:
        self._consumer: weakref.ref[Any] | None = None
        self._connected = False

    def connect(self) -> None:
        """Listen for ``worker_ready``, which Celery sends before the first task is taken."""
        if not self._connected and "celery.signals" in sys.modules:
            sys.modules["celery.signals"].worker_ready.connect(self._ready, weak=False)
            self._connected = True

    def _ready(self, sender: Any = None, **_: Any) -> None:
        self._consumer = None if sender is None else weakref.ref(sender)
        if self.forks and sender is not None:
            forget_nothing(sender.pool)

    @property
    def worker(self) -> bool:
        """Whether this process is a Celery worker."""
        return self._consumer is not None and self._consumer() is not None

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
