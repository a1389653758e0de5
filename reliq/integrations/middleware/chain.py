"""The four methods, what each is given, and in which order those of a chain are called.

Knows nothing of how Celery is made to call them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHAIN = "reliq_chain"
"""The attribute of an app, and of the classes of its tasks, that is the chain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _TaskContext:
    """What each of the four methods is told of a task."""

    app: Any
    """The Celery application."""
    name: str
    """The task's name."""
    id: str
    """The task's id; that of a retry is the same as before."""
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishContext(_TaskContext):
    """A task that is about to be published, and is stored nowhere yet."""

    headers: dict[str, Any]
    """All headers of the message, Celery's among them. What is changed here is published."""
    properties: Mapping[str, Any]
    """AMQP's properties that are known by now: ``correlation_id``, ``reply_to``."""
    options: Mapping[str, Any]
    """How it is sent: ``queue``, ``exchange``, ``routing_key``, ``priority`` and the like."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliverContext(_TaskContext):
    """A task that a worker has received, and is about to hand to its pool."""

    headers: Mapping[str, Any]
    """All headers of the message, Celery's and the transport's among them."""
    request: Any
    """Celery's ``celery.worker.request.Request``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginContext(_TaskContext):
    """A task that is about to run in this process, thread or greenlet."""

    headers: Mapping[str, Any]
    """The message's headers that are not Celery's own: ``task.request.headers``."""
    task: Any
    """Celery's task; ``task.request`` says the rest, ``task.retry()`` may be raised."""
    local: dict[Any, Any]
    """Empty at first, and given to ``end`` again: what belongs to this run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndContext(BeginContext):
    """A task that has run in this process, thread or greenlet."""

    state: str
    """SUCCESS, FAILURE, RETRY, REJECTED or IGNORED: Celery's names."""
    value: Any
    """What the task returned; None unless the state is SUCCESS."""
    error: BaseException | None
    """What was raised, by the task or a `begin`; None where the state is SUCCESS."""


class Middleware:
    """What is done around every task of an app; each method does nothing unless overridden.

    One object serves all tasks of a process, in all its threads: what belongs to one run goes
    into ``context.local``.
    """

    def publish(self, context: PublishContext) -> None:
        """Run where a task is published, before anything is stored.

        What it raises is raised to whoever publishes, and nothing is stored.
        """

    def deliver(self, context: DeliverContext) -> None:
        """Run in a worker's own process, before a task is handed to the pool.

        Raise ``celery.exceptions.Ignore`` to have the message acknowledged and the task not
        run, ``Reject`` to have the message dead-lettered or, with ``requeue=True``, given
        back and counted as a failed delivery. For any other exception it is dead-lettered.
        """

    def begin(self, context: BeginContext) -> None:
        """Run where a task is about to run. What it raises counts as raised by the task."""

    def end(self, context: EndContext) -> None:
        """Run where a task has run, if `begin` had returned. What it raises is only logged."""


class Chain:
    """The middleware of one app, in order."""

    def __init__(self) -> None:
        # Replaced as a whole, never changed: threads go through it.
        self.items: tuple[Middleware, ...] = ()


def end(context: EndContext, begun: list[Middleware]) -> None:
    """Run `end` of all that have *begun*, the last one first, and empty the list.

    An exception is logged. What is none (SystemExit, a gevent timeout) is an order to the
    process, and raised when all have ended.
    """
    while begun:
        # A soft time limit may be raised between two of them, too.
        try:
            while begun:
                begun.pop().end(context)
        except Exception:  # noqa: PERF203 - the others are to end all the same
            logger.exception(
                "the middleware's end raised for task %s[%s], which stays %s: mend the middleware",
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
