"""`deliver`, `begin` and `end`: in a worker.

`deliver` is the last step before a request goes to the pool, in the worker's own process. An eta,
a rate limit, a place in a prefork pool were waited for by then. Celery lets a task name the class
of its requests, and makes one more class of that for each task, with the step in it.

`begin` and `end` are around the run of a task, in whatever process, thread or greenlet. Celery's
tracer calls a task that has a `__call__` of its own, and all of it, from the result that is
stored to the next task of a chain, lies before its signal ``task_postrun``, which it sends
whatever happens. So `begin` is in a `__call__`, where the tracer sees what it raises, and `end`
hears the signal, which takes no part in the outcome.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ...errors import logger
from ...printable import plain
from ..outcomes import SUCCEEDED
from ..requests import forget
from .chain import BeginContext, DeliverContext, EndContext, end

if TYPE_CHECKING:
    from collections.abc import Callable

    from .chain import Chain, Middleware

_STEP = "execute_using_pool"
_LONGEST_ERROR = 1000
# Under which a request, which is of one run, has its Run; None when it has ended.
_OF_REQUEST = "reliq_run"


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
        revoked = self.revoked()
        error = None if revoked else _asked(self, chain)
        if error is None and not revoked:
            return step(self, pool, **options)
        # Not while it is handled: whatever is rejected then counts as rejected for it.
        if error is not None:
            _refuse(self, error)
        # It needs no place in the pool.
        raise sys.modules["celery.exceptions"].TaskRevokedError(self.id)

    return execute_using_pool


def _asked(request: Any, chain: Chain) -> BaseException | None:
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
        return exc  # whatever it is, the worker goes on
    return None


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
    why = (error.reason or "without a reason") if rejected else error
    words = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)
    text = plain(words[:_LONGEST_ERROR])
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


class Run:
    """One run of a task: who has begun."""

    __slots__ = ("begun", "context", "refused")

    def __init__(self, context: BeginContext) -> None:
        self.context = context
        self.begun: list[Middleware] = []
        self.refused = False
        """Whether a `begin` has raised: then the task's code is to raise the same."""


def calling(base: Any, chain: Chain) -> Callable[..., Any]:
    """Return the `__call__` of tasks of the class *base*, with *chain* around a run of theirs."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - what it becomes
        request = self.request_stack.top
        if request is None or request.called_directly or _OF_REQUEST in vars(request):
            return base.__call__(self, *args, **kwargs)  # a function is called, no task is run
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
            # Celery's autoretry tries it again for some exceptions. What it is around, the task's
            # code, raises what `begin` has raised, and what is being handled here.
            code = self._orig_run
            if not hasattr(code, "reliq_refuses"):
                self._orig_run = _refusing(self, code)
            return self.run(*args, **kwargs)
        # As Celery's tracer would if there were no middleware.
        if base.__call__ is sys.modules["celery.app.task"].Task.__call__:
            return self.run(*args, **kwargs)
        return base.__call__(self, *args, **kwargs)

    return __call__


def _refusing(task: Any, code: Callable[..., Any]) -> Callable[..., Any]:
    def refusing(*args: Any, **kwargs: Any) -> Any:
        request = task.request_stack.top
        run = None if request is None else vars(request).get(_OF_REQUEST)
        if run is not None and run.refused:
            raise  # noqa: PLE0704 - what is handled further up
        return code(*args, **kwargs)

    refusing.reliq_refuses = True  # type: ignore[attr-defined]
    return refusing


def watch_ends() -> None:
    """Have `end` called after each run of this process; once."""
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
        # A tracer that passes it on says nothing of it; it is on its way then.
        error = retval if isinstance(retval, BaseException) else sys.exc_info()[1]
    if not state:  # an eager run that raises, an exit: Celery gives them none
        exceptions = sys.modules["celery.exceptions"]
        states = {"Retry": "RETRY", "Reject": "REJECTED", "Ignore": "IGNORED"}
        kinds = (kind for kind in states if isinstance(error, getattr(exceptions, kind)))
        state = states.get(next(kinds, ""), "FAILURE")
    begun = {field.name: getattr(run.context, field.name) for field in fields(run.context)}
    value = retval if state == "SUCCESS" else None
    end(EndContext(**begun, state=state, value=value, error=error), run.begun)
