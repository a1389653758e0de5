"""Many: one task called for each item of an iterable, sent hundreds at a time.

Owns ``reliq.publish_many``: what is taken of the iterable, what of it is stored, and what is
said of it. How Celery makes the messages is known below (``integrations.task_calls``), how they
are sent in ``transports``.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from .errors import PartlyPublished
from .integrations.call_template import task_ids
from .integrations.collecting import Collector, Telling
from .integrations.task_calls import TaskCalls, Way, is_interrupt
from .transports.base import Transport
from .transports.chunk import Chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .errors import Flushable

    BeforeSend = Callable[[str, dict[str, Any], dict[str, Any]], object]
    Job = tuple[str, str]

_AT_ONCE = 500
# What waits for its like is sent with the first item that comes after this.
_WAITS_S = 1.0


def publish_many(
    task: Any,
    iterable: Iterable[Any],
    *,
    star: bool = False,
    app: Any = None,
    on_sent: Callable[[list[str]], object] | None = None,
    before_send: BeforeSend | None = None,
    **options: Any,
) -> int:
    """Publish a call of *task* for each item of *iterable*; return how many.

    As ``for item in iterable: task.apply_async((item,), **options)`` does, with the same
    messages and the same promises, at a tenth of the time or less. *task* is a task of Celery, a
    signature, or the name of a task of *app*. Each item is the one argument of a call; with
    *star* it is a tuple of arguments, or a mapping of keyword arguments. *options* are those of
    ``apply_async``, without ``task_id``, and are evaluated once.

    Up to 500 items are taken and sent at a time, or what has come within a second: memory stays
    flat, and no results are made. *on_sent* is called with the ids of those that are stored, in
    the order of their items; ``AsyncResult(id)`` reads a result. *before_send* is called with
    the task's name, headers and properties of each message, and may change the two.

    Raises PartlyPublished where it stops early, for whatever reason, which is its cause, and
    says what is stored, what is not, and what is uncertain; not atomic. A soft time limit and
    Ctrl-C pass as they are. Raises ConfigurationError for wrong arguments, before anything is
    taken.
    """
    calls = TaskCalls(task, app, options, star)
    return Many(calls, on_sent, before_send).publish(iterable)


class Observer(Protocol):
    """Who is told of each chunk, by pairs of a task's id and the queue that it goes to.

    The queue is "" where an exchange decides, or where Celery publishes each call by itself.
    """

    def sending(self, jobs: Sequence[Job]) -> None:
        """Learn of what is about to be sent; an exception keeps it from being sent."""

    def sent(self, jobs: Sequence[Job]) -> None:
        """Learn of what is stored."""

    def not_sent(self, jobs: Sequence[Job]) -> None:
        """Learn of what was announced, and was certainly not stored."""


class _Taken:
    """Items that were taken together, and what became of each."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.jobs: list[Job] = []
        """Of those whose messages were made."""
        self.flushed = 0
        """How many of the jobs were tried to be stored."""
        self.stored: list[int] = []
        self.uncertain: list[int] = []
        self.batch: Flushable | None = None

    @property
    def unsent(self) -> list[Any]:
        """The items that were certainly not stored."""
        known = {*self.stored, *self.uncertain}
        return [item for place, item in enumerate(self.items) if place not in known]

    def ids(self, places: list[int]) -> list[str]:
        """Return the ids of the tasks at *places*."""
        return [self.jobs[place][0] for place in places]


class Many:
    """One run over one iterable."""

    def __init__(
        self,
        calls: TaskCalls,
        on_sent: Callable[[list[str]], object] | None = None,
        before_send: BeforeSend | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._calls = calls
        self._on_sent = on_sent
        self._before_send = before_send
        self._observer = observer
        self._sent = 0

    def publish(self, iterable: Iterable[Any]) -> int:
        """Publish a call for each item; return how many. Raises PartlyPublished."""
        items = iter(iterable)
        over = False
        while not over:
            taken, error, over = _take(items)
            if taken:
                self._send(_Taken(taken))
            if error is not None:
                self._stop(error, _Taken([]))
        return self._sent

    def _send(self, taken: _Taken) -> None:
        error: Exception | None = None
        try:
            self._send_all(taken)
        except Exception as exc:  # noqa: BLE001 - it is the cause of what is raised below
            error = exc
        self._sent += len(taken.stored)
        if taken.stored and self._on_sent is not None:
            try:
                self._on_sent(taken.ids(taken.stored))
            except Exception as exc:  # noqa: BLE001 - the same
                error = error or exc
        if error is not None:
            self._stop(error, taken)

    def _send_all(self, taken: _Taken) -> None:
        calls = self._calls
        if calls.eager:
            self._send_each(taken, None)
            return
        with calls.app.producer_or_acquire(calls.producer) as producer:
            way = calls.way(producer)
            connection = producer.connection
            if way is not Way.PLAIN and isinstance(connection.transport, Transport):
                self._send_together(taken, producer, way)
                return
            tell = self._before_send
            told = partial(tell, calls.name) if tell is not None else None
            self._send_each(taken, producer if told is None else Telling(producer, told))

    def _send_each(self, taken: _Taken, producer: Any) -> None:
        """Have Celery publish each call by itself."""
        ids = task_ids(len(taken.items))
        for place, (item, task_id) in enumerate(zip(taken.items, ids, strict=True)):
            job = (task_id, "")
            taken.jobs.append(job)
            self._announce([job])
            try:
                self._calls.apply(item, job[0], producer)
            except Exception as exc:
                if self._calls.may_be_sent(exc):
                    taken.uncertain.append(place)
                else:
                    self._withdraw([job])
                raise
            taken.stored.append(place)
            self._confirm([job])

    def _send_together(self, taken: _Taken, producer: Any, way: Way) -> None:
        collector, chunk = Collector(producer), Chunk(producer)
        calls = self._calls.messages(taken.items, collector, way)
        before, name = self._before_send, self._calls.name
        error: Exception | None = None
        while error is None:
            place, full = len(taken.jobs), False
            try:
                call = next(calls, None)
                if call is None:
                    break
                task_id, messages = call
                if self._calls.retry_policy is not None:
                    chunk.retry(self._calls.retry_policy)
                for made in messages:
                    message = made
                    if before is not None:
                        before(name, made.headers, made.properties)
                        message = made._replace(differing=None)
                    full = chunk.add(place, message) or full
            except Exception as exc:  # noqa: BLE001 - raised below, after what came before it
                error = exc
                break
            taken.jobs.append((task_id, messages[0].queue if messages else ""))
            if full:
                error = self._flush(taken, chunk)
        error = self._flush(taken, chunk) or error
        if error is not None:
            raise error

    def _flush(self, taken: _Taken, chunk: Chunk) -> Exception | None:
        """Store what is in *chunk*; return what went wrong."""
        jobs = taken.jobs[taken.flushed :]
        if not jobs:
            return None
        try:
            self._announce(jobs)
        except Exception as exc:  # noqa: BLE001 - handed on
            chunk.discard()
            return exc
        done = chunk.flush()
        places = range(taken.flushed, len(taken.jobs))
        refused = [place for place in places if place in done.refused]
        uncertain = [place for place in places if place in done.uncertain]
        gone = done.refused | done.uncertain
        stored = [place for place in places if place not in gone]
        taken.flushed = len(taken.jobs)
        taken.stored += stored
        taken.uncertain += uncertain
        taken.batch = done.batch
        self._withdraw([taken.jobs[place] for place in refused])
        self._confirm([taken.jobs[place] for place in stored])
        return done.error

    # -- who is told

    def _announce(self, jobs: Sequence[Job]) -> None:
        if self._observer is not None:
            self._observer.sending(jobs)

    def _withdraw(self, jobs: Sequence[Job]) -> None:
        if self._observer is not None and jobs:
            self._observer.not_sent(jobs)

    def _confirm(self, jobs: Sequence[Job]) -> None:
        if self._observer is not None and jobs:
            self._observer.sent(jobs)

    def _stop(self, error: Exception, taken: _Taken) -> NoReturn:
        """Raise what says that *error* has ended it."""
        if is_interrupt(error):
            raise error
        unsent, uncertain = taken.unsent, tuple(taken.ids(taken.uncertain))
        text = f"publishing many calls of {self._calls.name!r} stopped, {self._sent} are stored"
        if unsent:
            text += f", {len(unsent)} that were taken are not (unsent)"
        if uncertain:
            text += f", {len(uncertain)} may be or not"
            if taken.batch is not None:
                text += " (batch.flush() stores each once)"
        text += f": {type(error).__name__}: {error}"
        raise PartlyPublished(text, self._sent, unsent, uncertain, taken.batch) from error


def _take(items: Iterator[Any]) -> tuple[list[Any], Exception | None, bool]:
    """Return what is to be sent next, what taking more of it has raised, and whether it is all."""
    taken: list[Any] = []
    late = monotonic() + _WAITS_S
    try:
        for item in items:
            taken.append(item)
            if len(taken) >= _AT_ONCE or monotonic() > late:
                return taken, None, False
    except Exception as exc:  # noqa: BLE001 - what was taken before is sent first
        return taken, exc, True
    return taken, None, True
