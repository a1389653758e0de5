"""Job headers: how a message shows that it is a job of a batch, and how the job ended."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..batches.jobs import is_id, require_job_id
from ..message.delivery_tag import BATCH as BATCH  # noqa: PLC0414 - beside the other headers
from ..message.envelope import EnvelopeError, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FAILURES = "reliq-failures"
"""The header with the names of the exceptions that its batch counts as business failures."""
EARLIER = "reliq-earlier"
"""The header of a job with the number of tries before Celery's first try of this task."""
LEASE = "reliq_lease"
"""In delivery_info of a job: its queue, the token of its lease, the session that holds it, and the
name of its broker."""


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
    membership = _MEMBERSHIP.get()
    return membership.job if membership is not None and membership.batch == batch else ""


def join_batch(headers: dict[str, Any]) -> None:
    """Make a published task a job of the batch of this context, if there is one.

    A task that already names its batch keeps it, as a retry does. A task with the id of the running
    job continues that job. Raises MessageRefused for an invalid id.
    """
    if "task" not in headers or BATCH in headers:
        return
    membership, hands_over = _MEMBERSHIP.get(), HANDS_OVER.get()
    if hands_over is not None and hands_over(headers):
        return
    if membership is not None:
        require_job_id(headers.get("id"))
        headers[BATCH] = membership.batch
        if membership.failures:
            headers[FAILURES] = list(membership.failures)


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
