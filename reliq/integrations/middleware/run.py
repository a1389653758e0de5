"""`begin` and `end`: around the run of a task, in whatever process, thread or greenlet.

Celery's tracer calls a task that has a `__call__` of its own, and all of it, from the result
that is stored to the next task of a chain, lies before its signal ``task_postrun``, which it
sends whatever happens. So `begin` is in a `__call__`, where the tracer sees what it raises,
and `end` hears the signal, which takes no part in the outcome.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .chain import BeginContext, EndContext, end

if TYPE_CHECKING:
    from collections.abc import Callable

    from .chain import Chain, Middleware

# Under which a request, which is of one run, has its Run; None when it has ended.
_OF_REQUEST = "reliq_run"


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
            chain.begin(run.context, run.begun)
        except Exception:
            if not hasattr(self, "_orig_run"):
                raise
            run.refused = True
            return _autoretry(self)(*args, **kwargs)
        return _code(base, self)(*args, **kwargs)

    return __call__


def _code(base: Any, task: Any) -> Callable[..., Any]:
    """Return what Celery's tracer would call if there were no middleware."""
    if base.__call__ is sys.modules["celery.app.task"].Task.__call__:
        run: Callable[..., Any] = task.run
        return run
    called: Callable[..., Any] = base.__call__.__get__(task)
    return called


def _autoretry(task: Any) -> Callable[..., Any]:
    """Return the part of *task* that tries it again for some exceptions.

    What it is around, the task's code, raises what `begin` has raised, and what is being
    handled where this is called.
    """
    code = task._orig_run  # noqa: SLF001 - Celery's name for what autoretry is around
    if not hasattr(code, "reliq_refuses"):
        task._orig_run = _refusing(task, code)  # noqa: SLF001
    retrying: Callable[..., Any] = task.run
    return retrying


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
    begun = run.context
    end(
        EndContext(
            app=begun.app,
            name=begun.name,
            id=begun.id,
            headers=begun.headers,
            args=begun.args,
            kwargs=begun.kwargs,
            task=begun.task,
            local=begun.local,
            state=state or _state_of(error),
            value=retval if state == "SUCCESS" else None,
            error=error,
        ),
        run.begun,
    )


def _state_of(error: BaseException | None) -> str:
    """Return the state of what Celery gives none: an eager run that raises, an exit."""
    exceptions = sys.modules["celery.exceptions"]
    for kind, state in (("Retry", "RETRY"), ("Reject", "REJECTED"), ("Ignore", "IGNORED")):
        if isinstance(error, getattr(exceptions, kind)):
            return state
    return "FAILURE"
