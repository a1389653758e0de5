"""Workarounds for Celery's pools after a lost connection.

Prefork: after a lost connection, Celery forgets tasks that were handed to a child and have not
reported their begin, because another broker would deliver them again. With reliq, the lease is
kept, and the child runs the task. Celery also forgets partly read results. It would then take the
rest of one for the beginning of the next, never hear of this child again, and never ack the task.

gevent inspects every existing object before it patches `time.sleep`. Inspecting an object of
Celery imports Kombu, which then keeps the blocking `sleep` for the pauses between its attempts to
connect. A worker without a broker would block all its greenlets for 2, 4, ... 32 seconds at a time:
no task would run, and no lease would be renewed.
"""

# ruff: noqa: SLF001 - Celery 5.7's AsynPool.flush has no options, and no public access

from __future__ import annotations

import sys
import time
from contextlib import suppress
from functools import partial
from inspect import GEN_SUSPENDED, getgeneratorstate
from typing import TYPE_CHECKING, Any

from kombu.utils import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_END_OF_CHILD_S = 5.0
_NEEDED = ("_cache", "_active_writers", "_active_writes", "_flush_writer", "_pool")
_NEEDED_OF_RESULTS = ("_recv_message", "_hub", "fileno_to_outq", "register_with_event_loop")


def let_others_run() -> None:
    """Make Kombu pause with gevent's `sleep` if gevent has patched it."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("time"):
        functional.sleep = time.sleep


def forget_nothing(pool: Any) -> None:
    """Make the prefork *pool* keep its tasks when a connection is lost.

    A pool with another structure than that of Celery 5.7 is not changed: a task that a child has
    just been handed is then delivered again.
    """
    inner = pool._pool
    results = getattr(inner, "_result_handler", None)
    if all(hasattr(inner, name) for name in _NEEDED):
        reads = None
        if all(hasattr(results, name) for name in _NEEDED_OF_RESULTS):
            reads = _Reads(inner)
        pool.flush = partial(_settle, inner, reads)


class _Reads:
    """Keeps partly read results of children when the event loop forgets them."""

    def __init__(self, inner: Any) -> None:
        self._results = results = inner._result_handler
        self._read: Callable[..., Generator[None, None, None]] = results._recv_message
        self._of_child: dict[int, tuple[Any, Generator[None, None, None]]] = {}
        results._recv_message = self._begin_or_go_on
        # The worker is ready, so its loop already uses the original function.
        hub = results._hub
        results.register_with_event_loop(hub)
        inner.handle_result_event = results.handle_event
        for fd in tuple(results.fileno_to_outq):
            if fd in hub.readers:
                hub.add_reader(fd, results.handle_event, fd)

    def _begin_or_go_on(
        self, add_reader: Any, fd: int, callback: Any
    ) -> Generator[None, None, None]:
        """Return the reader of the next result from *fd*, or of a partly read one."""
        reading = self._half_read(fd)
        if reading is None:
            reading = self._read(add_reader, fd, callback)
            self._of_child[fd] = self._results.fileno_to_outq[fd], reading
        return reading

    def _half_read(self, fd: int) -> Generator[None, None, None] | None:
        child, reading = self._of_child.get(fd, (None, None))
        # The descriptor may have been reused for another child.
        same = child is not None and child is self._results.fileno_to_outq.get(fd)
        same = same and not getattr(child, "dead", False)
        if reading is None or not same or getgeneratorstate(reading) != GEN_SUSPENDED:
            return None
        return reading

    def keep(self) -> None:
        for fd in tuple(self._of_child):
            reading = self._half_read(fd)
            if reading is not None:
                with suppress(OSError):  # the child died, and its pipe is closed
                    self._results._hub.add_reader(fd, reading)


def _settle(inner: Any, reads: _Reads | None) -> None:
    """Do the work of Celery's flush without forgetting tasks.

    Finishes partial writes to children, because the event loop that would continue them
    restarts. Keeps partial reads, and replaces dead children.
    """
    if reads is not None:
        reads.keep()
    writers = {
        writer: job
        for job in tuple(inner._cache.values())
        if (writer := getattr(job, "_writer", lambda: None)()) is not None
    }
    for writer in tuple(inner._active_writers):
        job = writers.get(writer)
        if job is not None:  # until it is done; if the child is dead, another one gets the job
            inner._flush_writer(job._write_to or job._scheduled_for, writer)
            continue
        with suppress(OSError, EOFError):  # a reply to a dead child
            for _ in writer:
                pass
    inner._active_writers.clear()
    inner._active_writes.clear()
    for child in _seen_to_end(inner):
        child.join(_END_OF_CHILD_S)
    inner.maintain_pool()
    for child in _seen_to_end(inner):
        del child._sentinel_poll  # still running: watch it again


def _seen_to_end(inner: Any) -> list[Any]:
    """Return children that were reported as ended but remain: Celery watches only once."""
    return [child for child in inner._pool if getattr(child, "_sentinel_poll", child) is None]
