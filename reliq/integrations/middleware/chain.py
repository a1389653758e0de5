"""The four methods of middleware, their context objects, and the order of calls in a chain.

Does not know how Celery is made to call them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHAIN = "reliq_chain"
"""The attribute of an app, and of the classes of its tasks, that holds the chain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _TaskContext:
    """The information about a task that all four methods receive."""

    app: Any
    """The Celery application."""
    name: str
    """The task's name."""
    id: str
    """The task's id; a retry has the same id."""
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishContext(_TaskContext):
    """A task that is about to be published, before anything is stored."""

    headers: dict[str, Any]
    """All headers of the message, including Celery's. Changes are published."""
    properties: Mapping[str, Any]
    """AMQP properties known at this point: ``correlation_id``, ``reply_to``."""
    options: Mapping[str, Any]
    """Publishing options: ``queue``, ``exchange``, ``routing_key``, ``priority`` and the like."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliverContext(_TaskContext):
    """A task that a worker has received and is about to hand to its pool."""

    headers: Mapping[str, Any]
    """All headers of the message, including Celery's and the transport's."""
    request: Any
    """Celery's ``celery.worker.request.Request``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginContext(_TaskContext):
    """A task that is about to run in this process, thread or greenlet."""

    headers: Mapping[str, Any]
    """The message's headers without Celery's own: ``task.request.headers``."""
    task: Any
    """Celery's task, with ``task.request``; ``task.retry()`` may be raised."""
    local: dict[Any, Any]
    """The data of this run: empty at first, and passed to ``end``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndContext(BeginContext):
    """A task that has run in this process, thread or greenlet."""

    state: str
    """One of Celery's states: SUCCESS, FAILURE, RETRY, REJECTED or IGNORED."""
    value: Any
    """The return value of the task; None unless the state is SUCCESS."""
    error: BaseException | None
    """The exception of the task or of a `begin`; None if the state is SUCCESS."""


class Middleware:
    """Application code around every task of an app. The default methods do nothing.

    One object serves all tasks and threads of a process: keep run data in ``context.local``.
    """

    def publish(self, context: PublishContext) -> None:
        """Run before a task is published and anything is stored.

        An exception is raised to the publisher, and nothing is stored.
        """

    def deliver(self, context: DeliverContext) -> None:
        """Run in a worker's own process, before a task is handed to the pool.

        Raise ``celery.exceptions.Ignore`` to ack the message without running the task. Raise
        ``Reject`` to dead-letter the message or, with ``requeue=True``, to return it and count
        a failed delivery. Any other exception dead-letters it.
        """

    def begin(self, context: BeginContext) -> None:
        """Run before a task runs. An exception counts as raised by the task."""

    def end(self, context: EndContext) -> None:
        """Run after a task, if its `begin` has returned. An exception is only logged."""


class Chain:
    """The middleware of one app, in order."""

    def __init__(self) -> None:
        # Replaced as a whole, never changed, because other threads iterate over it.
        self.items: tuple[Middleware, ...] = ()


def end(context: EndContext, begun: list[Middleware]) -> None:
    """Run `end` of all middleware in *begun*, in reverse order, and empty the list.

    Logs exceptions. Orders to the process (SystemExit, a gevent timeout) are raised at the end.
    """
    while begun:
        # A soft time limit may also be raised between two of them.
        try:
            while begun:
                begun.pop().end(context)
        except Exception:  # noqa: PERF203 - the others must end too
            logger.exception(
                "the middleware's end raised for task %s[%s], which stays %s: fix the middleware",
                context.name,
                context.id,
                context.state,
            )
        except BaseException:
            end(context, begun)
            raise


def chain_of(app: Any) -> Chain | None:
    """Return the chain of a Celery *app*; None if it has no middleware."""
    chain: Chain | None = getattr(app, CHAIN, None)
    return chain
