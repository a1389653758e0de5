"""A lost connection and Celery's pools.

Prefork: after a lost connection Celery forgets the tasks that it has handed to a child and that
have not said yet that they began, because another broker would deliver them again. This one does
not: the lease is kept, and the child runs the task. And it forgets which results it had half
read: the rest of one would be taken for the beginning of the next, the worker would never
hear of this child again, and the task would never be acked.

gevent looks at every object there is before it patches `time.sleep`; to look at one of
Celery's imports Kombu, which so keeps the `sleep` that blocks, for the pauses between its
tries to connect. A worker that has lost its broker would then be blocked, all greenlets of
it, for 2, 4, ... 32 seconds at a time: no task would go on, and no lease be renewed.
"""

# ruff: noqa: SLF001 - Celery 5.7's AsynPool.flush is all or nothing; no other way leads in

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
    """Have Kombu pause with gevent's `sleep`, where gevent has patched it."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("time"):
        functional.sleep = time.sleep


def forget_nothing(pool: Any) -> None:
    """Let the prefork *pool* keep its tasks over a lost connection.

    A pool that is not built like that of Celery 5.7 stays as it is: a task that a child had
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
    """Keeps what is half read of a child's result when the event loop forgets it."""

    def __init__(self, inner: Any) -> None:
        self._results = results = inner._result_handler
        self._read: Callable[..., Generator[None, None, None]] = results._recv_message
        self._of_child: dict[int, tuple[Any, Generator[None, None, None]]] = {}
        results._recv_message = self._begin_or_go_on
        # The worker is ready, so its loop has the function that was there before.
        hub = results._hub
        results.register_with_event_loop(hub)
        inner.handle_result_event = results.handle_event
        for fd in tuple(results.fileno_to_outq):
            if fd in hub.readers:
                hub.add_reader(fd, results.handle_event, fd)

    def _begin_or_go_on(
        self, add_reader: Any, fd: int, callback: Any
    ) -> Generator[None, None, None]:
        """Return what reads the next result from *fd*, or the one that is half read."""
        reading = self._half_read(fd)
        if reading is None:
            reading = self._read(add_reader, fd, callback)
            self._of_child[fd] = self._results.fileno_to_outq[fd], reading
        return reading

    def _half_read(self, fd: int) -> Generator[None, None, None] | None:
        child, reading = self._of_child.get(fd, (None, None))
        # A descriptor may be used again, for another child.
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
    """Do what Celery's flush does, but for forgetting.

    What is half written to a child is written to its end (the event loop, which would go
    on with it, begins anew), what is half read from one is read on, and children that have
    died are replaced.
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
        if job is not None:  # until it is done, or the child is dead: then another one gets it
            inner._flush_writer(job._write_to or job._scheduled_for, writer)
            continue
        with suppress(OSError, EOFError):  # an answer to a child that is dead
            for _ in writer:
                pass
    inner._active_writers.clear()
    inner._active_writes.clear()
    for child in _seen_to_end(inner):
        child.join(_END_OF_CHILD_S)
    inner.maintain_pool()
    for child in _seen_to_end(inner):
        del child._sentinel_poll  # still not gone: it is watched anew


def _seen_to_end(inner: Any) -> list[Any]:
    """Return the children that were seen to end, but are not gone: Celery watches once only."""
    return [child for child in inner._pool if getattr(child, "_sentinel_poll", child) is None]
