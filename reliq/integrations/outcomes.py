"""Outcomes: the end of a task as Celery's worker learns it, before its message is settled.

In every pool, callbacks inform the worker's own process: one with the result or the error of the
task, another if its child died or its time limit passed. Each callback settles the message, unless
the task was acked when it began. The outcome is therefore attached to the message before they
are called, and the ack reports it to the batch first. If the callbacks return without settling
the message, the outcome is reported then.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from ..consumer.host import HOST
from ..errors import Failed
from ..values.job_headers import BATCH, FAILURES, SUCCEEDED, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

REPLACED = "reliq: a task of the same id goes on with the job"
"""The text of Ignore from a job that has replaced itself."""
DROPPED = "its batch is cancelled"
"""The text of Ignore from a job that did not run."""

_LONGEST = 500


def _in_words(error: BaseException) -> str:
    reason = getattr(error, "reason", error) if _is(error, "Reject") else error
    if isinstance(reason, BaseException):  # a rejected exception is reported under its own type
        error = reason
    words = str(reason)
    name = type(error).__name__
    return (f"{name}: {words}" if words else name)[:_LONGEST]


def _names(error: BaseException) -> set[str]:
    """Return the class names of *error*, also if a child could not pickle it."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    wrapped = getattr(error, "exc_module", None), getattr(error, "exc_cls_name", None)
    return names | {f"{wrapped[0]}.{wrapped[1]}"}


def outcome_of(
    error: BaseException, failures: Sequence[str] = (), acked: bool = False
) -> Outcome | None:
    """Return the outcome of a task that raised *error*; None if the task is retried.

    An *acked* task cannot be returned, because its message no longer exists.
    """
    error = _itself(error)
    given_back = _is(error, "Reject") and getattr(error, "requeue", False)
    if _is(error, "Retry") or (given_back and not acked):
        return None
    if is_ignore(error):  # the task reports that it did not fail
        if DROPPED in error.args:
            return Outcome("cancelled", DROPPED)
        return None if REPLACED in error.args else SUCCEEDED
    names = _names(error)
    if isinstance(error, Failed):
        return Outcome("failed", str(error)[:_LONGEST] or "failed")
    if names.intersection(failures):
        return Outcome("failed", _in_words(error))
    return Outcome("cancelled" if _is(error, "Terminated") else "error", _in_words(error))


def is_ignore(error: BaseException) -> bool:
    """Whether *error* is Celery's Ignore."""
    return _is(_itself(error), "Ignore")


def _itself(error: BaseException) -> BaseException:
    """Return the error that billiard has wrapped for sending."""
    cause = getattr(error, "exc", error) if _is(error, "ExceptionWithTraceback") else error
    return cause if isinstance(cause, BaseException) else error


def _is(error: BaseException, name: str) -> bool:
    return any(
        kind.__name__ == name and kind.__module__.split(".")[0] in {"celery", "billiard"}
        for kind in type(error).__mro__
    )


def observed(request: Any, callbacks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the *callbacks* of a pool for *request*, each of which records the outcome first.

    A job reports the outcome to its batch; any task with late acks keeps it for a dead letter. The
    message of a task that was acked early, from a queue with limits, stays until the task ends.
    """
    headers = getattr(request, "request_dict", None) or {}
    message = getattr(request, "message", None)
    noted = dict(callbacks)
    is_job = bool(headers.get(BATCH))
    limited = getattr(message, "limited", False)
    ends_matter = is_job or request.task.acks_late or limited or HOST.bounded
    if not (hasattr(message, "outcome") and ends_matter):
        return noted
    named = headers.get(FAILURES) or ()

    def of_result(result: Any, *_: Any, **__: Any) -> Outcome | None:
        failed, value, runtime = result
        if failed:
            return outcome_of(value.exception, named, request.acknowledged)
        # Celery's result for a killed greenlet.
        return Outcome("cancelled", "terminated") if runtime is None else SUCCEEDED

    def of_failure(info: Any, *_: Any, **__: Any) -> Outcome | None:
        return outcome_of(info.exception, named, request.acknowledged)

    def of_timeout(soft: bool, timeout: Any, *_: Any, **__: Any) -> Outcome | None:
        if soft:  # an exception is raised inside the task
            return None
        return Outcome("error", f"TimeLimitExceeded({timeout})")

    learns = {"callback": of_result, "error_callback": of_failure, "timeout_callback": of_timeout}
    for name, learn in learns.items():
        if noted.get(name) is not None:
            ends = learn is not of_timeout
            noted[name] = _noting(request, noted[name], learn, ends)
    if (is_job or limited) and noted.get("accept_callback") is not None:
        noted["accept_callback"] = _begun(request, noted["accept_callback"])
    return noted


def _noting(
    request: Any,
    function: Callable[..., Any],
    learn: Callable[..., Outcome | None],
    ends: bool,
) -> Callable[..., Any]:
    """Return *function* with the outcome attached to the message before it is settled.

    The message may be settled later, in the thread of the worker's loop.
    """
    message = request.message

    @wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        outcome, settled = learn(*args, **kwargs), request.acknowledged
        if outcome is not None:
            message.outcome = outcome if BATCH in message.headers else None
            message.error = outcome.text  # for the dead letter, if it becomes one
        try:
            return function(*args, **kwargs)
        finally:
            if settled and (outcome is not None or ends):
                message.channel.settlement.settle([message], "ended")
            elif outcome is not None and not request.acknowledged:
                message.outcome = None  # it stays unacked, and will be delivered again

    return noting


def _begun(request: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    message, early = request.message, not request.task.acks_late

    @wraps(function)
    def begun(*args: Any, **kwargs: Any) -> Any:
        message.channel.settlement.note_begun(message, acked=early)
        return function(*args, **kwargs)

    return begun
