"""Return or dead-letter messages that make Celery's own code raise after they were received.

Celery expects errors from tasks, not from its own code. The worker then ends, or the request
stays unacked, occupies a place in the pool and is never reported. Celery's code uses the content
of a message at four points: at the delivery, when the request is handed to the pool (at once or by
a timer), in the pool, and when the result returns. This module handles all but the first.

An exception may also arrive from outside while such code runs: from a signal handler, or thrown
into a greenlet. It would have met any other message, and is raised.
"""

# ruff: noqa: SLF001 - Celery 5.7 has no public access to the step that takes a place of the pool

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from ..interrupts import came_from_outside
from .job_runs import is_job, run_job
from .outcomes import observed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ToDeadLetter = Callable[[Any, Exception], bool]

# Pools that run requests in the worker's own process, where exceptions of the target are lost.
_IN_PROCESS = frozenset(f"celery.concurrency.{name}" for name in ("thread", "gevent", "eventlet"))


def is_to_blame(consumer: Any, error: BaseException) -> bool:
    """Whether a message has caused *error*, rather than a connection or the machine."""
    if isinstance(error, (OSError, MemoryError)) or not isinstance(error, Exception):
        return False
    if came_from_outside(error):
        return False
    if isinstance(error, LookupError):  # Kombu's Redis counts KeyError as a lost connection
        return True
    return not consumer.app.backend.exception_safe_to_retry(error)


def requests_of(message: Any) -> Iterator[Any]:
    """Yield Celery's request for *message*, if it exists."""
    state = sys.modules["celery.worker.state"]
    for request in tuple(state.reserved_requests):
        if getattr(request, "message", None) is message:
            yield request


def forget(request: Any) -> None:
    """Remove *request* from Celery's set of active requests; note if its task may have begun."""
    if getattr(request, "time_start", None) is not None:
        request.message.begun = True
    with suppress(TypeError):  # its id may be of any type
        sys.modules["celery.worker.state"].task_ready(request)


def report_eta(request: Any = None, **_: Any) -> None:
    """Pass the eta of a message that was delayed at the broker to its task.

    The message arrives without an eta, because Celery's worker holds messages that have one. The
    worker sends this signal after that check. The request passes the eta on, also to a child.
    """
    eta = getattr(getattr(request, "message", None), "eta", None)
    if eta is not None:
        request.request_dict["eta"] = eta


def watch_over(consumer: Any) -> None:
    """Dead-letter requests of *consumer* that make Celery's code raise, with the error."""
    if getattr(consumer.on_task_request, "reliq_watches", False):
        return
    to_dead_letter = partial(_to_dead_letter, consumer)
    consumer.on_task_request = _answered_for(consumer.on_task_request, to_dead_letter)
    consumer.on_task_request.reliq_watches = True
    worker = consumer.controller
    if getattr(worker, "semaphore", None) is not None:
        process = _answered_for(worker._process_task, to_dead_letter)

        def processed(request: Any) -> None:
            if process(request) is _FAILED:  # it occupies no place in the pool
                worker._quick_release()

        worker._process_task = processed
    pool, kind = consumer.pool, type(consumer.pool).__module__
    pool.on_apply = _applied(
        pool.on_apply,
        to_dead_letter,
        solo=kind == "celery.concurrency.solo",
        in_process=kind in _IN_PROCESS,
    )


def _to_dead_letter(consumer: Any, request: Any, error: Exception) -> bool:
    """Settle the message of *request*; return False if it has not caused *error*."""
    message = getattr(request, "message", None)
    settlement = getattr(getattr(message, "channel", None), "settlement", None)
    if settlement is None or not is_to_blame(consumer, error):
        return False
    forget(request)
    # In the thread that acks, which may be another one.
    settle = settlement.settle_malformed
    consumer.call_soon_ack(partial(settle, message, error, request.acknowledged))
    return True


_FAILED = object()


def _answered_for(
    function: Callable[..., Any],
    to_dead_letter: ToDeadLetter,
    request: Any = None,
    *,
    last: bool = False,
) -> Any:
    """Return *function* with its exceptions for *request*, or its first argument, handled.

    With *last*, the exception is raised nevertheless: no further step handles the request.
    """

    @wraps(function)
    def answered_for(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as exc:
            if not to_dead_letter(args[0] if request is None else request, exc) or last:
                raise
            return _FAILED

    return answered_for


def _applied(
    on_apply: Callable[..., Any], to_dead_letter: ToDeadLetter, *, solo: bool, in_process: bool
) -> Callable[..., Any]:
    """Return a pool's *on_apply* that handles exceptions of target and callbacks.

    In a *solo* pool, the step that hands the request to the pool handles them.
    """

    @wraps(on_apply)
    def applied(target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        request = getattr(options.get("callback"), "__self__", None)
        if request is None:
            return on_apply(target, args, kwargs, **options)
        options = observed(request, options)
        if not solo:
            for name in ("timeout", "soft_timeout"):
                limit = options.get(name)
                if limit is not None and not isinstance(limit, (int, float)):
                    # Each pool would fail in its own way.
                    text = f"the header timelimit: expected {name} to be a number"
                    raise TypeError(f"{text}, got: {limit!r:.100}")
        if is_job(request):
            target, args = run_job, (target, *args)
        options = _reporting_exits(options)
        if in_process:
            target = _answered_for(target, to_dead_letter, request, last=True)
        for name in () if solo else ("accept_callback", "callback", "error_callback"):
            if options.get(name) is not None:
                last = in_process and name == "accept_callback"
                options[name] = _answered_for(options[name], to_dead_letter, request, last=last)
        return on_apply(target, args, kwargs, **options)

    return applied


def _reporting_exits(options: dict[str, Any]) -> dict[str, Any]:
    """Return pool *options* that make a task's SystemExit a failure, as that of a child is.

    If a task runs in this process, Celery passes only the error to the callback for results.
    """
    returned, failed = options.get("callback"), options.get("error_callback")
    if returned is None or failed is None:
        return options

    def called(result: Any, *args: Any, **kwargs: Any) -> Any:
        is_exit = hasattr(result, "exception")
        return failed(result) if is_exit else returned(result, *args, **kwargs)

    return {**options, "callback": called}
