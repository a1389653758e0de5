"""What a task does for its batch: it says that it begins, and may ask and tell more.

How it has ended its worker tells (:mod:`reliq.integrations.outcomes`).
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ReliqError
from ..forks import OwnLock, here
from ..integrations.celery import open_store
from ..integrations.middleware import Middleware
from ..integrations.outcomes import BATCH, FAILURES, Membership, adding_to
from ..store.jobs import CANCELLED, Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..integrations.middleware import BeginContext, EndContext
    from ..store.protocol import Store

logger = logging.getLogger("reliq")

# So often a task that asks again and again asks the broker.
_ASKED_EVERY_S = 1.0


class Running(NamedTuple):
    """The job that runs in this context."""

    batch: str
    job: str
    failures: tuple[str, ...]
    app: Any
    asked: list[float]
    """When it was asked last whether the batch is cancelled, by the monotonic clock."""


_RUNNING: ContextVar[Running | None] = ContextVar("reliq job", default=None)


class _Connections:
    """One connection of this process to the broker of each app. Thread-safe."""

    _lock = OwnLock()

    def __init__(self) -> None:
        self._process = here()
        self._stores: dict[int, Store] = {}

    def of(self, app: Any) -> Store:
        """Return the connection of *app*; raises BrokerUnavailable."""
        with self._lock:
            if self._process != here():
                self._process, self._stores = here(), {}
            store = self._stores.get(id(app))
            if store is None:
                name = f"jobs:{socket.gethostname().split('.')[0]}:{os.getpid()}"
                store = self._stores[id(app)] = open_store(app.connection_for_write(), name)
            return store


_CONNECTIONS = _Connections()


class BatchMiddleware(Middleware):
    """Add it to an app whose tasks are jobs of batches.

    A job says when it begins, and does not run where its batch is cancelled. Without it batches
    know how jobs end, but not that they run.
    """

    def begin(self, context: BeginContext) -> None:
        """Say that the job begins; one round trip. Raises Ignore where its batch is cancelled."""
        running = _running(context)
        if running is None:
            return
        context.local[self] = _RUNNING.set(running)
        if _begun(running, context) == CANCELLED:
            raise sys.modules["celery.exceptions"].Ignore

    def end(self, context: EndContext) -> None:
        """Forget it."""
        token = context.local.get(self)
        if token is not None:
            _RUNNING.reset(token)


def _running(context: BeginContext) -> Running | None:
    headers = context.headers
    batch = headers.get(BATCH)
    if not isinstance(batch, str) or context.task.request.is_eager:
        return None
    named = tuple(map(str, headers.get(FAILURES) or ()))
    return Running(batch, context.id, named, context.app, [0.0])


def _begun(running: Running, context: BeginContext) -> int | None:
    """Say that a job begins; return what the broker says, None where it says nothing."""
    request = context.task.request
    # Of delivery_info Celery takes what it knows; in the properties it is as it was.
    properties = request.get("properties") or {}
    lease = (properties.get("delivery_info") or {}).get("reliq_lease")
    queue, token, session = lease or ("", "0", "")
    tag = properties.get("delivery_tag") or ""
    who = session or f"{request.hostname}:{os.getpid()}"
    change = Change("begin", running.job, "", request.retries or 0, int(token), tag, queue, who)
    try:
        changed = _CONNECTIONS.of(running.app).batches.change(running.batch, (change,))
    except ReliqError as exc:
        logger.warning(
            "job %s of batch %s runs, and its batch does not know: %s",
            running.job,
            running.batch,
            exc,
        )
        return None
    return None if changed is None else changed.outcomes[0]


def cancelled() -> bool:
    """Whether the batch of the job that runs here is cancelled; False where none runs.

    Asks the broker at most once a second. Raises nothing: an answer that does not come is no.
    """
    running = _RUNNING.get()
    if running is None:
        return False
    last = running.asked[0]
    if last < 0:
        return True
    now = monotonic()
    if now - last < _ASKED_EVERY_S and last:
        return False
    running.asked[0] = now
    try:
        record = _CONNECTIONS.of(running.app).batches.batch(running.batch)
    except ReliqError as exc:
        logger.warning("batch %s: whether it is cancelled is not known: %s", running.batch, exc)
        return False
    if record is not None and record.cancelled_ms:
        running.asked[0] = -1.0
        return True
    return False


@contextmanager
def add_jobs() -> Iterator[None]:
    """Let the tasks that the block publishes be jobs of the batch of the job that runs here.

    Also of one that is sealed. Where no job runs they are no jobs.
    """
    running = _RUNNING.get()
    membership = None
    if running is not None:
        membership = Membership(running.batch, running.failures, running.job)
    with adding_to(membership):
        yield
