"""Job runs: what is done around a job in the child, thread or greenlet that runs it.

A worker hands its pool a job as it does any other task, but for the function that runs it: that
of Celery within :func:`run_job`. So a job says that it begins, and does not run where its batch
is cancelled, in every app, and what is no job costs nothing. How a job ends its worker tells
(:mod:`.outcomes`), when this has returned.
"""

from __future__ import annotations

import os
import socket
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..errors import BrokerUnavailable, ReliqError, logger
from ..forks import OwnLock, here
from ..store.jobs import CANCELLED, Change
from .connections import open_store
from .outcomes import (
    BATCH,
    DROPPED,
    EARLIER,
    FAILURES,
    HANDS_OVER,
    LEASE,
    REPLACED,
    is_ignore,
    job_of,
    tries_before,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..store.protocol import Store


class JobContext:
    """The job that runs in this context."""

    def __init__(self, request: Mapping[str, Any], app: Any) -> None:
        self.batch = str(request[BATCH])
        self.job = str(request["id"])
        self.failures = tuple(map(str, request.get(FAILURES) or ()))
        self.app = app
        self.retries = tries_before(request)
        self.replaced = False
        """Whether it has published a task of its own id, which goes on with the job."""
        # Of delivery_info Celery takes what it knows; in the properties it is as it was.
        properties = request.get("properties") or {}
        lease = (properties.get("delivery_info") or {}).get(LEASE)
        queue, token, session, broker = lease or ("", "0", "", "")
        self.queue, self.token = str(queue), int(token)
        self.tag: str = properties.get("delivery_tag") or ""
        self.worker = str(session) or f"{request.get('hostname')}:{os.getpid()}"
        """Who works on it: the session that has its message, by which the register knows it."""
        self.broker = str(broker)
        """Where its message is from, and where its batch is: one of several, perhaps."""
        self.at_end: list[Callable[[], object]] = []
        """What is to be done when it has run, before its worker tells how."""
        self.local: dict[str, Any] = {}
        """What is remembered of this run."""

    @property
    def store(self) -> Store:
        """The connection of this process to that broker; raises BrokerUnavailable."""
        return _CONNECTIONS.of(self.app, self.broker)

    def change(self, what: Any, text: str = "") -> Change:
        """Return a change of this job, as this delivery of this try says it."""
        return Change(what, self.job, "", self.retries, self.token, self.tag, self.queue, text)

    def hand_over(self, headers: dict[str, Any]) -> bool:
        """Let a task that it publishes go on with the job, where it has its id; whether it does.

        As Celery's ``replace`` publishes it. It is the next try of the job.
        """
        if headers.get("id") != self.job:
            return False
        headers[BATCH], headers[EARLIER] = self.batch, self.retries + 1
        if self.failures:
            headers[FAILURES] = list(self.failures)
        self.replaced = True
        return True


RUNNING: ContextVar[JobContext | None] = ContextVar("reliq job", default=None)


class _Connections:
    """One connection of this process to each broker of each app. Thread-safe."""

    _lock = OwnLock()

    def __init__(self) -> None:
        self._process = here()
        self._stores: dict[tuple[int, str], Store] = {}

    def of(self, app: Any, broker: str) -> Store:
        """Return the connection of *app* to the *broker* of that name; raises BrokerUnavailable."""
        with self._lock:
            if self._process != here():
                self._process, self._stores = here(), {}
            place = id(app), broker
            store = self._stores.get(place)
            if store is None:
                name = f"jobs:{socket.gethostname().split('.')[0]}:{os.getpid()}"
                store = open_store(app.connection_for_write(), name, broker)
                self._stores[place] = store
            return store

    def close(self) -> None:
        with self._lock:
            stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()


_CONNECTIONS = _Connections()


def is_job(request: Any) -> bool:
    """Whether a worker's *request* is a job of a batch, and of a message of ours."""
    headers = getattr(request, "request_dict", None) or {}
    message = getattr(request, "message", None)
    return message is not None and job_of(headers) is not None


def run_job(function: Callable[..., Any], name: str, task_id: str, request: Any, *rest: Any) -> Any:
    """Run *function*, which is Celery's, for a job; what it returns goes back to the worker.

    The job's begin is said before that; one round trip. Where its batch is cancelled the task
    does not run, and has ended as one that raises Ignore has.
    """
    running = JobContext(request, sys.modules["celery"].current_app._get_current_object())  # noqa: SLF001
    token, hands_over = RUNNING.set(running), HANDS_OVER.set(running.hand_over)
    try:
        if _begun(running) == CANCELLED:
            return _ignored(DROPPED)
        returned = function(name, task_id, request, *rest)
        if running.replaced and returned[0] and is_ignore(returned[1].exception):
            return _ignored(REPLACED)
        return returned
    finally:
        HANDS_OVER.reset(hands_over)
        try:
            for last in running.at_end:
                last()
        finally:
            RUNNING.reset(token)


def _ignored(why: str) -> tuple[int, Any, float]:
    """Return what Celery's function returns of a task that has raised Ignore."""
    ignore = sys.modules["celery.exceptions"].Ignore
    try:
        raise ignore(why)  # noqa: TRY301 - it is to have a traceback
    except ignore:
        return 1, sys.modules["billiard.einfo"].ExceptionInfo(), 0.0


def _begun(running: JobContext) -> int | None:
    """Say that a job begins; return what the broker says, None where it says nothing."""
    begin = (running.change("begin", running.worker),)
    try:
        try:
            changed = running.store.batches.change(running.batch, begin)
        except BrokerUnavailable:
            # The connection was closed, or went silent, since the last job: this one is new.
            changed = running.store.batches.change(running.batch, begin)
    except ReliqError as exc:
        logger.warning(
            "job %s of batch %s runs, and its batch does not know: %s",
            running.job,
            running.batch,
            exc,
        )
        return None
    return None if changed is None else changed.outcomes[0]
