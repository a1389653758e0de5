"""Many: publishes a call of one task for each item of an iterable, hundreds at a time.

``integrations.task_calls`` makes the messages as Celery does, and ``transports`` sends them.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..errors import PartlyPublished
from ..integrations.call_template import task_ids
from ..integrations.collecting import Collector, Reporting
from ..integrations.task_calls import TaskCalls, Way, raise_interrupt
from ..transports.base import Transport
from ..transports.publish.chunk import Chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..errors import Flushable

    BeforeSend = Callable[[str, dict[str, Any], dict[str, Any]], object]

_AT_ONCE = 500
# Waiting items are sent with the first item that arrives after this time.
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
    """Publish a call of *task* for each item of *iterable*; return the number of calls.

    Equals ``for item in iterable: task.apply_async((item,), **options)``, with the same messages
    and guarantees, in a tenth of the time or less. *task* is a Celery task, a signature, or the
    name of a task of *app*. Each item is the single argument of a call; with *star*, it is a tuple
    of arguments, or a mapping of keyword arguments. *options* are those of ``apply_async``, without
    ``task_id``, and are evaluated once.

    Sends up to 500 items at a time, or those that arrive within a second. Memory use is constant,
    and no result objects are created. *on_sent* is called with the ids of stored messages, in the
    order of their items; ``AsyncResult(id)`` reads a result. *before_send* is called with the
    task's name, the headers and the properties of each message, and may change headers and
    properties.

    Raises PartlyPublished if it stops early, with the reason as its cause. The error lists stored,
    unsent and uncertain items; not atomic. A soft time limit and Ctrl-C are raised unchanged.
    Raises ConfigurationError for wrong arguments, before taking any item.
    """
    calls = TaskCalls(task, app, options, star)
    return Many(calls, on_sent, before_send).publish(iterable)


class _Taken:
    """Items that were taken together, and their outcomes."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ids: list[str] = []
        """The ids of items whose messages were made."""
        self.flushed = 0
        """The number of these that were flushed."""
        self.stored: list[int] = []
        self.uncertain: list[int] = []
        self.batch: Flushable | None = None

    @property
    def unsent(self) -> list[Any]:
        """The items that were definitely not stored."""
        known = {*self.stored, *self.uncertain}
        return [item for place, item in enumerate(self.items) if place not in known]


class Many:
    """One run over one iterable."""

    def __init__(
        self,
        calls: TaskCalls,
        on_sent: Callable[[list[str]], object] | None = None,
        before_send: BeforeSend | None = None,
    ) -> None:
        self._calls = calls
        self._on_sent = on_sent
        self._before_send = before_send
        self._sent = 0

    def publish(self, iterable: Iterable[Any]) -> int:
        """Publish a call for each item; return the number. Raises PartlyPublished."""
        items = iter(iterable)
        more = True
        while more:
            taken = _Taken()
            try:
                more = _take(items, taken.items)
            except Exception as exc:
                self._send(taken)
                raise_interrupt(exc)
                raise self._stopped(exc, _Taken()) from exc
            self._send(taken)
        return self._sent

    def _send(self, taken: _Taken) -> None:
        tried = False
        try:
            if taken.items:
                self._send_all(taken)
            tried = True
            self._report(taken)
        except Exception as exc:
            if not tried:
                with suppress(Exception):  # the first error is raised
                    self._report(taken)
            raise_interrupt(exc)
            raise self._stopped(exc, taken) from exc

    def _report(self, taken: _Taken) -> None:
        self._sent += len(taken.stored)
        if taken.stored and self._on_sent is not None:
            self._on_sent([taken.ids[place] for place in taken.stored])

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
            report = self._before_send
            reported = partial(report, calls.name) if report is not None else None
            self._send_each(taken, producer if reported is None else Reporting(producer, reported))

    def _send_each(self, taken: _Taken, producer: Any) -> None:
        ids = task_ids(len(taken.items))
        for place, (item, task_id) in enumerate(zip(taken.items, ids, strict=True)):
            taken.ids.append(task_id)
            try:
                self._calls.apply(item, task_id, producer)
            except Exception as exc:
                if self._calls.may_be_sent(exc):
                    taken.uncertain.append(place)
                raise
            taken.stored.append(place)

    def _send_together(self, taken: _Taken, producer: Any, way: Way) -> None:
        collector, chunk = Collector(producer), Chunk(producer)
        calls = self._calls.messages(taken.items, collector, way)
        before, name = self._before_send, self._calls.name
        try:
            for task_id, messages in calls:
                if self._calls.retry_policy is not None:
                    chunk.retry(self._calls.retry_policy)
                place, full = len(taken.ids), False
                for made in messages:
                    message = made
                    if before is not None:
                        before(name, made.headers, made.properties)
                        message = made._replace(differing=None)
                    full = chunk.add(place, message) or full
                taken.ids.append(task_id)
                if full:
                    self._flush(taken, chunk)
        except Exception:
            self._flush(taken, chunk)  # send the items before the failed one, as a loop would have
            raise
        self._flush(taken, chunk)

    def _flush(self, taken: _Taken, chunk: Chunk) -> None:
        """Store the messages of *chunk*; record the outcome even if this raises."""
        places = range(taken.flushed, len(taken.ids))
        taken.flushed = len(taken.ids)
        if not places:
            return
        try:
            chunk.flush()
        finally:
            done = chunk.flushed
            gone = done.refused | done.uncertain
            taken.stored += [place for place in places if place not in gone]
            taken.uncertain += [place for place in places if place in done.uncertain]
            taken.batch = done.batch

    def _stopped(self, error: Exception, taken: _Taken) -> PartlyPublished:
        """Return the error that reports the early stop by *error*."""
        unsent, uncertain = taken.unsent, tuple(taken.ids[place] for place in taken.uncertain)
        text = f"publishing calls of {self._calls.name!r} stopped: {self._sent} stored"
        if unsent:
            text += f", {len(unsent)} taken but not stored (unsent)"
        if uncertain:
            text += f", {len(uncertain)} uncertain"
            if taken.batch is not None:
                text += " (batch.flush() stores each once)"
        text += f": {type(error).__name__}: {error}"
        return PartlyPublished(text, self._sent, unsent, uncertain, taken.batch)


def _take(items: Iterator[Any], taken: list[Any]) -> bool:
    """Take the items to send next; return whether there may be more. Raises errors of *items*."""
    late = monotonic() + _WAITS_S
    for item in items:
        taken.append(item)
        if len(taken) >= _AT_ONCE or monotonic() > late:
            return True
    return False
