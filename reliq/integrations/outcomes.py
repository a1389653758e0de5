"""Outcomes: the end of a task as Celery's worker learns it, before its message is settled.

In every pool, callbacks inform the worker's own process: one with the result or the error of the
task, another if its child died or its time limit passed. Each callback settles the message, unless
the task was acked when it began. The outcome is therefore attached to the message before they
are called, and the ack reports it to the batch first. If the callbacks return without settling
the message, the outcome is reported then.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import Failed
from ..message.envelope import EnvelopeError, decode
from ..store.jobs import is_id, require_job_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

BATCH = "reliq-batch"
"""The header that names the batch of a task."""
FAILURES = "reliq-failures"
"""The header with the names of the exceptions that its batch counts as business failures."""
EARLIER = "reliq-earlier"
"""The header of a job with the number of tries before Celery's first try of this task."""
LEASE = "reliq_lease"
"""In delivery_info of a job: its queue, the token of its lease, the session that holds it, and the
name of its broker."""

REPLACED = "reliq: a task of the same id goes on with the job"
"""The text of Ignore from a job that has replaced itself."""
DROPPED = "its batch is cancelled"
"""The text of Ignore from a job that did not run."""

_LONGEST = 500


class Membership(NamedTuple):
    """The batch that tasks published by this thread or task belong to."""

    batch: str
    failures: tuple[str, ...] = ()
    job: str = ""
    """The job that publishes; "" for the producer of the batch."""


_MEMBERSHIP: ContextVar[Membership | None] = ContextVar("reliq batch", default=None)

HANDS_OVER: ContextVar[Callable[[dict[str, Any]], bool] | None] = ContextVar(
    "reliq job's replacement", default=None
)
"""While a job runs: takes headers of a published task, returns whether it continues the job."""


@contextmanager
def adding_to(membership: Membership | None) -> Iterator[None]:
    """Add tasks that the block publishes to a batch; to none if *membership* is None."""
    token = _MEMBERSHIP.set(membership)
    try:
        yield
    finally:
        _MEMBERSHIP.reset(token)


def membership() -> Membership | None:
    """Return the batch that publishes of this thread or task belong to."""
    return _MEMBERSHIP.get()


def adding_job(batch: str) -> str:
    """Return the job of *batch* that publishes; "" if it is not a job of that batch."""
    found = _MEMBERSHIP.get()
    return found.job if found is not None and found.batch == batch else ""


def join_batch(headers: dict[str, Any]) -> None:
    """Make a published task a job of the batch of this context, if there is one.

    A task that already names its batch keeps it, as a retry does. A task with the id of the running
    job continues that job. Raises MessageRefused for an invalid id.
    """
    if "task" not in headers or BATCH in headers:
        return
    found, hands_over = _MEMBERSHIP.get(), HANDS_OVER.get()
    if hands_over is not None and hands_over(headers):
        return
    if found is not None:
        require_job_id(headers.get("id"))
        headers[BATCH] = found.batch
        if found.failures:
            headers[FAILURES] = list(found.failures)


def job_of(headers: Mapping[str, Any]) -> tuple[str, str, int] | None:
    """Return (batch, job, tries) of a message that is a job; None for other messages.

    Ids that no batch could store, from a foreign publisher, make no job.
    """
    batch, job, retries = headers.get(BATCH), headers.get("id"), headers.get("retries") or 0
    if is_id(batch) and is_id(job) and isinstance(retries, int):
        return batch, job, tries_before(headers)
    return None


def job_in(envelope: bytes) -> tuple[str, str, int] | None:
    """Return :func:`job_of` a stored message; None also if it is unreadable."""
    try:
        return job_of(decode(envelope).headers)
    except EnvelopeError:
        return None


def tries_before(headers: Mapping[str, Any]) -> int:
    """Return the number of earlier tries of a job, including those of tasks that it replaced."""
    counted = headers.get("retries"), headers.get(EARLIER)
    return sum(number for number in counted if isinstance(number, int))


class Outcome(NamedTuple):
    """The final end of a task."""

    state: Literal["succeeded", "failed", "error", "cancelled"]
    """*cancelled* for a revoked task, which is an error unless its batch is cancelled."""
    text: str = ""
    """A readable reason."""


SUCCEEDED = Outcome("succeeded")


def _in_words(error: BaseException) -> str:
    reason = getattr(error, "reason", error) if _is(error, "Reject") else error
    if isinstance(reason, BaseException):  # a rejected exception is reported under its own type
        error = reason
    words = str(reason)
    name = type(error).__name__
    return (f"{name}: {words}" if words else name)[:_LONGEST]


def _names(error: BaseException) -> set[str]:
    """Return the class names of *error*, also if a child could not pickle it."""
    found = {f"{one.__module__}.{one.__qualname__}" for one in type(error).__mro__}
    wrapped = getattr(error, "exc_module", None), getattr(error, "exc_cls_name", None)
    return found | {f"{wrapped[0]}.{wrapped[1]}"}


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
    found = getattr(error, "exc", error) if _is(error, "ExceptionWithTraceback") else error
    return found if isinstance(found, BaseException) else error


def _is(error: BaseException, name: str) -> bool:
    return any(
        one.__name__ == name and one.__module__.split(".")[0] in {"celery", "billiard"}
        for one in type(error).__mro__
    )


def observed(request: Any, callbacks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the *callbacks* of a pool for *request*, each of which records the outcome first.

    A job reports the outcome to its batch; any task with late acks keeps it for a dead letter.
    """
    headers = getattr(request, "request_dict", None) or {}
    message = getattr(request, "message", None)
    found = dict(callbacks)
    is_job = bool(headers.get(BATCH))
    if not hasattr(message, "outcome") or not (is_job or request.task.acks_late):
        return found
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
        if found.get(name) is not None:
            found[name] = _noting(request, found[name], learn)
    if is_job and found.get("accept_callback") is not None:
        found["accept_callback"] = _begun(request, found["accept_callback"])
    return found


def _noting(
    request: Any, function: Callable[..., Any], learn: Callable[..., Outcome | None]
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
            if outcome is not None and settled:
                message.channel.settlement.settle([message], "ended")
            elif outcome is not None and not request.acknowledged:
                message.outcome = None  # it stays unacked, and will be delivered again

    return noting


def _begun(request: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    message, early = request.message, not request.task.acks_late

    @wraps(function)
    def begun(*args: Any, **kwargs: Any) -> Any:
        message.begun, message.acked_early = True, early
        return function(*args, **kwargs)

    return begun
