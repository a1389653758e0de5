"""Job runs: the steps around a job in the child, thread or greenlet that runs it.

A worker hands a job to its pool like any other task, except for the function that runs it:
:func:`run_job` around Celery's own. In every app, a job therefore reports its begin, and does not
run if its batch is cancelled. Other tasks have no extra cost. The worker reports the end of the
job (:mod:`.outcomes`) after this function has returned.
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..batches.jobs import CANCELLED, Change
from ..errors import BrokerUnavailable, ReliqError, logger
from ..forks import OwnLock, here
from ..values.job_headers import BATCH, EARLIER, FAILURES, HANDS_OVER, LEASE, job_of, tries_before
from .connections import client_name, open_store
from .outcomes import DROPPED, REPLACED, is_ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..batches.jobs import Changed
    from ..values.protocol import Store


class JobContext:
    """The job that runs in this context."""

    def __init__(self, request: Mapping[str, Any], app: Any) -> None:
        self.batch = str(request[BATCH])
        self.job = str(request["id"])
        self.failures = tuple(map(str, request.get(FAILURES) or ()))
        self.app = app
        self.retries = tries_before(request)
        self.replaced = False
        """Whether it has published a task with its own id, which continues the job."""
        # Celery keeps only known fields of delivery_info; the properties have all of them.
        properties = request.get("properties") or {}
        lease = (properties.get("delivery_info") or {}).get(LEASE)
        queue, token, session, broker = lease or ("", "0", "", "")
        self.queue, self.token = str(queue), int(token)
        self.tag: str = properties.get("delivery_tag") or ""
        self.worker = str(session) or f"{request.get('hostname')}:{os.getpid()}"
        """The session that holds the message, by its name in the register."""
        self.broker = str(broker)
        """The broker of its message and its batch, which may be one of several."""
        self.at_end: list[Callable[[], object]] = []
        """Called after the run, before its worker reports the outcome."""
        self.cancelled, self.asks_at = False, 0.0
        """Whether its batch is cancelled, and when to ask the broker again."""
        self.unwritten: tuple[float, float, str] | None = None
        """The last progress, until it is written."""
        self.writes_at, self.reported = 0.0, 0
        """When progress may be written again, and the number of reports."""

    @property
    def store(self) -> Store:
        """The connection of this process to that broker; raises BrokerUnavailable."""
        return _CONNECTIONS.of(self.app, self.broker)

    def change(self, what: Any, text: str = "") -> Change:
        """Return a change of this job, for this try and delivery."""
        return Change(what, self.job, "", self.retries, self.token, self.tag, self.queue, text)

    def hand_over(self, headers: dict[str, Any]) -> bool:
        """Let a published task with the id of this job continue it; return whether it does.

        Celery's ``replace`` publishes such a task. It is the next try of the job.
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
    """Guards the connections; held while connecting. Of nested connections, the first is kept."""

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
                store = self._stores.setdefault(place, _opened(app, broker))
            return store

    def ask_anew(
        self, app: Any, broker: str, ask: Callable[[Store], Changed | None]
    ) -> Changed | None:
        """Return the reply to *ask* over a new connection; None if the broker has no such batch.

        With a reply, the new connection replaces the former one. Calls of other threads over that
        one raise BrokerUnavailable.
        """
        store = unused = _opened(app, broker)
        try:
            reply = ask(store)
            if reply is not None:
                with self._lock:
                    unused = self._stores[id(app), broker]
                    self._stores[id(app), broker] = store
        finally:
            unused.close()
        return reply


def _opened(app: Any, broker: str) -> Store:
    return open_store(app.connection_for_write(), client_name("jobs"), broker)


_CONNECTIONS = _Connections()


def is_job(request: Any) -> bool:
    """Whether a worker's *request* is a job of a batch, received as a reliq message."""
    headers = getattr(request, "request_dict", None) or {}
    message = getattr(request, "message", None)
    return message is not None and job_of(headers) is not None


def run_job(function: Callable[..., Any], name: str, task_id: str, request: Any, *rest: Any) -> Any:
    """Run Celery's *function* for a job; return its result to the worker.

    First reports the job's begin, in one round trip. If its batch is cancelled, the task does not
    run, and ends as if it had raised Ignore.
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
    """Return the result of Celery's function for a task that has raised Ignore."""
    ignore = sys.modules["celery.exceptions"].Ignore
    try:
        raise ignore(why)  # noqa: TRY301 - it needs a traceback
    except ignore:
        return 1, sys.modules["billiard.einfo"].ExceptionInfo(), 0.0


def _begun(running: JobContext) -> int | None:
    """Report the begin of a job; return the broker's reply, None if there is none."""
    begin = (running.change("begin", running.worker),)

    def report(store: Store) -> Changed | None:
        return store.batches.change(running.batch, begin)

    try:
        try:
            changed = report(running.store)
        except BrokerUnavailable:
            # The connection was closed or silent since the last job: the next call opens another.
            changed = report(running.store)
        if changed is None:
            # Perhaps a former master, unfrozen and not yet demoted: Sentinels name the new one.
            changed = _CONNECTIONS.ask_anew(running.app, running.broker, report)
    except ReliqError as exc:
        logger.warning(
            "job %s of batch %s runs, but its begin could not be reported to the batch: %s",
            running.job,
            running.batch,
            exc,
        )
        return None
    return None if changed is None else changed.outcomes[0]
