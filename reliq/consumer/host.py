"""Host: the process that hosts the consumers, as far as they must know it.

A plain program has the default answers. :mod:`reliq.integrations` fills in others for a process
that has loaded Celery. This module imports neither Celery nor a layer above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def _none(*_: Any) -> None:
    """Return None."""


def _no(*_: Any) -> bool:
    return False


@dataclass(eq=False)
class Host:
    """Questions about this process; each may be asked in any thread."""

    prepare: Callable[[], object] = bool
    """Called for each new transport: the application may have loaded Celery meanwhile."""
    at_child_end: Callable[[], object] = bool
    """Called by the host at the end of a child of a prefork pool, which runs no atexit hooks."""
    worked: bool = False
    """Whether this process is or was a worker."""
    worker: Callable[[], bool] = bool
    """Whether this process is a worker, which runs tasks."""
    begins: Callable[[], bool] = bool
    """Whether this worker has received no task yet; False in a child of its pool."""
    serves: Callable[[], bool] = bool
    """Whether this process belongs to a worker: a starting one, or its pool's child."""
    connects: Callable[[], bool] = bool
    """Whether this worker is starting, or reconnects after a lost connection."""
    stopping: Callable[[], bool] = bool
    """Whether this worker must end, which its loop checks only between two turns."""
    forks: Callable[[], bool] = bool
    """Whether the worker's pool forks children. Threads should then be avoided."""
    inline: Callable[[], bool] = lambda: True
    """Whether a task may run inside the delivery of its message, as in a solo pool."""
    busy: Callable[[], bool] = bool
    """Whether this worker runs tasks, including acked ones."""
    running: Callable[[], dict[str, int]] = dict
    """Running tasks of this worker that are or will soon be acked: their number by queue."""
    jobs_of: Callable[[str], set[str] | None] = _none
    """The ids of the jobs that this worker runs for a session; None without a worker."""
    will_consume: Callable[[str, bool], bool] = _no
    """Whether this worker, perhaps a starting one, consumes from a queue, durable or not."""
    takes_from: Callable[[Any], bool] = _no
    """Whether a worker itself, and not one of its tasks, consumes over a transport."""
    dropped: Callable[[Any, Any, Exception], bool | None] = _none
    """Drop the work for a message that made the worker at a transport raise an error.

    Returns whether the message was settled before; None if it has not caused the error."""
    pool: Callable[[], str] = str
    """The pool of this worker (prefork, thread, gevent, solo ...); "" in other processes."""
    node: Callable[[], str] = str
    """The name of this worker, such as celery@host; "" in other processes."""
    processes: Callable[[], int] = int
    """How many tasks this worker runs at a time; 0 in other processes."""
    free: Callable[[], int] = int
    """How many further tasks this worker can start at once."""
    unprotected: Callable[[], list[str]] = list
    """Tasks of this worker that do not run again if their pool process is killed."""
    bounded: bool = False
    """Whether the log of this process says that limits bound what it takes in advance."""
    warned: bool = False
    """Whether the log of this process has its unprotected tasks."""


HOST = Host()
