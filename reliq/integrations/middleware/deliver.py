"""`deliver`: in a worker's own process, the last step before a request goes to the pool.

What was to be waited for (an eta, a rate limit, a place in a prefork pool) is over by then.
Celery lets a task name the class of its requests, and makes one more class of that for each
task, with the step in it.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from ...printable import plain
from ..outcomes import SUCCEEDED
from ..requests import forget
from .chain import DeliverContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from .chain import Chain

logger = logging.getLogger("reliq")

_STEP = "execute_using_pool"
_LONGEST_ERROR = 1000


def request_class(base: Any, chain: Chain) -> Any:
    """Return a class of requests like *base*, for which *chain* is asked before they run."""

    class Request(base):
        __slots__ = ()

        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__(**options)
            step = vars(cls).get(_STEP)
            if step is not None:
                setattr(cls, _STEP, _delivering(step, chain))

    return Request


def _delivering(step: Callable[..., Any], chain: Chain) -> Callable[..., Any]:
    def execute_using_pool(self: Any, pool: Any, **options: Any) -> Any:
        if self.revoked():
            raise _no_longer(self)
        error = _asked(self, chain)
        # Not while it is handled: whatever is rejected then counts as rejected for it.
        if error is not None:
            _refuse(self, error)
            raise _no_longer(self)
        return step(self, pool, **options)

    return execute_using_pool


def _asked(request: Any, chain: Chain) -> BaseException | None:
    """Return what *chain* raises for *request*."""
    context = DeliverContext(
        app=request.app,
        name=request.type,
        id=request.id,
        headers=request.message.headers,
        args=request.args,
        kwargs=request.kwargs,
        request=request,
    )
    try:
        chain.deliver(context)
    except MemoryError:
        raise
    except (Exception, SystemExit) as exc:
        exceptions = sys.modules["celery.exceptions"]
        if isinstance(exc, (exceptions.WorkerShutdown, exceptions.WorkerTerminate)):
            raise
        return exc  # whatever it is, the worker goes on
    return None


def _no_longer(request: Any) -> Exception:
    """Return what tells the worker that *request* needs no place in the pool."""
    error: Exception = sys.modules["celery.exceptions"].TaskRevokedError(request.id)
    return error


def _refuse(request: Any, error: Any) -> None:
    """Settle the message of *request*, then tell whoever waits for the task that it failed."""
    exceptions = sys.modules["celery.exceptions"]
    forget(request)
    if isinstance(error, exceptions.Ignore):
        logger.info("task %s[%s] is ignored by the middleware", request.name, request.id)
        if hasattr(request.message, "outcome"):  # of ours: as where the task raises it
            request.message.outcome = SUCCEEDED
        request.acknowledge()
        return
    rejected = isinstance(error, exceptions.Reject)
    text = _in_words((error.reason or "without a reason") if rejected else error)
    if hasattr(request.message, "verdict"):  # a message of ours: the dead letter has the error
        request.message.error = text
    if rejected and error.requeue:
        logger.warning(
            "task %s[%s] is given back by the middleware: %s", request.name, request.id, text
        )
        request.reject(requeue=True)
        return
    logger.error(
        "task %s[%s] does not run and its message is rejected, because the middleware raised "
        "%s; replay the dead letter when that is mended",
        request.name,
        request.id,
        text,
        exc_info=None if rejected else error,
    )
    request.reject(requeue=False)
    try:
        _tell(request, error)
    except Exception:
        logger.exception(
            "the failure of task %s[%s] could not be stored: who waits for its result is not told",
            request.name,
            request.id,
        )


def _tell(request: Any, error: BaseException) -> None:
    """Do what Celery does when a task rejects its message for good."""
    exc_info = type(error), error, error.__traceback__
    einfo = sys.modules["billiard.einfo"].ExceptionInfo(exc_info)
    request.task.backend.mark_as_failure(
        request.id,
        error,
        request=request._context,  # noqa: SLF001 - as Celery's own Request does
        store_result=request.store_errors,
    )
    sys.modules["celery.signals"].task_failure.send(
        sender=request.task,
        task_id=request.id,
        exception=error,
        args=request.args,
        kwargs=request.kwargs,
        traceback=einfo.traceback,
        einfo=einfo,
    )
    request.send_event("task-failed", exception=repr(error), traceback=einfo.traceback)


def _in_words(error: Any) -> str:
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    return plain(text[:_LONGEST_ERROR])
