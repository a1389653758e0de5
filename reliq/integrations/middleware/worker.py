"""`deliver`, `begin` and `end` in a worker.

`deliver` is the last step before a request goes to the pool, in the worker's own process. It
follows any wait for an eta, a rate limit or a place in a prefork pool. Celery lets a task name
the class of its requests, and makes a subclass of it for each task, which contains this step.

`begin` and `end` surround the run of a task, in any process, thread or greenlet. Celery's tracer
calls the `__call__` of a task that has its own. All of the run, from the stored result to the
next task of a chain, precedes the signal ``task_postrun``, which is always sent. So `begin` is in
a `__call__`, where the tracer handles its exceptions. `end` cannot change the outcome.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ...errors import logger
from ...printable import plain
from ...values.job_headers import SUCCEEDED
from ..requests import forget
from .chain import BeginContext, DeliverContext, EndContext, end

if TYPE_CHECKING:
    from collections.abc import Callable

    from .chain import Chain, Middleware

_STEP = "execute_using_pool"
_LONGEST_ERROR = 1000
# Attribute of a request, which belongs to one run, for its Run; None after the end.
_OF_REQUEST = "reliq_run"


def request_class(base: Any, chain: Chain) -> Any:
    """Return a class of requests like *base*, which calls *chain* before a request runs."""

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
        revoked = self.revoked()
        error = None if revoked else _verdict(self, chain)
        if error is None and not revoked:
            return step(self, pool, **options)
        # Outside of the exception handler: a rejection would otherwise be attributed to the error.
        if error is not None:
            _refuse(self, error)
        # The request needs no place in the pool.
        raise sys.modules["celery.exceptions"].TaskRevokedError(self.id)

    return execute_using_pool


def _verdict(request: Any, chain: Chain) -> BaseException | None:
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
        for item in chain.items:
            item.deliver(context)
    except MemoryError:
        raise
    except (Exception, SystemExit) as exc:
        exceptions = sys.modules["celery.exceptions"]
        if isinstance(exc, (exceptions.WorkerShutdown, exceptions.WorkerTerminate)):
            raise
        return exc  # the worker continues after any exception
    return None


def _refuse(request: Any, error: Any) -> None:
    """Settle the message of *request*, then report the failure of the task to its callers."""
    exceptions = sys.modules["celery.exceptions"]
    forget(request)
    if isinstance(error, exceptions.Ignore):
        logger.info("task %s[%s] is ignored by the middleware", request.name, request.id)
        if hasattr(request.message, "outcome"):  # a reliq message: as if the task had raised it
            request.message.outcome = SUCCEEDED
        request.acknowledge()
        return
    rejected = isinstance(error, exceptions.Reject)
    why = (error.reason or "without a reason") if rejected else error
    words = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)
    text = plain(words[:_LONGEST_ERROR])
    if hasattr(request.message, "outcome"):  # a reliq message: the dead letter has the error
        request.message.error = text
    if rejected and error.requeue:
        logger.warning(
            "task %s[%s] is requeued by the middleware: %s", request.name, request.id, text
        )
        request.reject(requeue=True)
        return
    logger.error(
        "task %s[%s] does not run and its message is rejected, because the middleware raised "
        "%s; replay the dead letter when the cause is fixed",
        request.name,
        request.id,
        text,
        exc_info=None if rejected else error,
    )
    request.reject(requeue=False)
    try:
        _report(request, error)
    except Exception:
        logger.exception(
            "the failure of task %s[%s] could not be stored: callers that wait are not informed",
            request.name,
            request.id,
        )


def _report(request: Any, error: BaseException) -> None:
    """Do the steps that Celery does when a task rejects its message without requeue."""
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


@dataclass(slots=True)
class Run:
    """One run of a task, with the middleware that has begun."""

    context: BeginContext
    begun: list[Middleware] = field(default_factory=list)
    refused: bool = False
    """Whether a `begin` has raised. The task's code must then raise the same."""


def calling(base: Any, chain: Chain) -> Callable[..., Any]:
    """Return the `__call__` of tasks of the class *base*, with *chain* around each run."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - what it becomes
        request = self.request_stack.top
        if request is None or request.called_directly or _OF_REQUEST in vars(request):
            return base.__call__(self, *args, **kwargs)  # a function call, not the run of a task
        run = Run(
            BeginContext(
                app=self.app,
                name=self.name,
                id=request.id,
                headers=request.headers or {},
                args=args,
                kwargs=kwargs,
                task=self,
                local={},
            )
        )
        vars(request)[_OF_REQUEST] = run
        try:
            for item in chain.items:
                item.begin(run.context)
                run.begun.append(item)
        except Exception:
            if not hasattr(self, "_orig_run"):
                raise
            run.refused = True
            # Celery's autoretry retries the task for some exceptions. The task's code inside of
            # it raises the exception of `begin`, which is being handled here.
            code = self._orig_run
            if not hasattr(code, "reliq_refuses"):
                self._orig_run = _refusing(self, code)
            return self.run(*args, **kwargs)
        # As Celery's tracer does without middleware.
        if base.__call__ is sys.modules["celery.app.task"].Task.__call__:
            return self.run(*args, **kwargs)
        return base.__call__(self, *args, **kwargs)

    return __call__


def _refusing(task: Any, code: Callable[..., Any]) -> Callable[..., Any]:
    def refusing(*args: Any, **kwargs: Any) -> Any:
        request = task.request_stack.top
        run = None if request is None else vars(request).get(_OF_REQUEST)
        if run is not None and run.refused:
            raise  # noqa: PLE0704 - the exception handled by the caller
        return code(*args, **kwargs)

    refusing.reliq_refuses = True  # type: ignore[attr-defined]
    return refusing


def watch_ends() -> None:
    """Call `end` after each run of this process; connected once."""
    sys.modules["celery.signals"].task_postrun.connect(
        _after, weak=False, dispatch_uid="reliq.middleware"
    )


def _after(sender: Any = None, state: str | None = None, retval: Any = None, **_: Any) -> None:
    request = getattr(getattr(sender, "request_stack", None), "top", None)
    run = None if request is None else vars(request).get(_OF_REQUEST)
    if run is None:
        return
    vars(request)[_OF_REQUEST] = None
    error = None
    if state != "SUCCESS":
        # A tracer that propagates the exception does not pass it here.
        error = retval if isinstance(retval, BaseException) else sys.exc_info()[1]
    if not state:  # Celery sets none for an eager run that raises, or an exit
        exceptions = sys.modules["celery.exceptions"]
        states = {"Retry": "RETRY", "Reject": "REJECTED", "Ignore": "IGNORED"}
        kinds = (kind for kind in states if isinstance(error, getattr(exceptions, kind)))
        state = states.get(next(kinds, ""), "FAILURE")
    begun = {field.name: getattr(run.context, field.name) for field in fields(run.context)}
    value = retval if state == "SUCCESS" else None
    end(EndContext(**begun, state=state, value=value, error=error), run.begun)
