"""Runs one function in several processes, started at the same time.

Called in a process of `benchmarks.child`. The other processes are forked from it before any of
them connects. They share its imports, so 64 of them start in a second.
"""

from __future__ import annotations

import importlib
import multiprocessing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier

BEGIN_WITHIN_S = 120.0
END_WITHIN_S = 300.0


def together(called: str, processes: int, arguments: dict[str, Any]) -> list[Any]:
    """Call `module:function` once in each process; return all results.

    The function calls its argument `ready` when it is connected. `ready` returns in all processes
    at the same time.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes)
    results: Any = context.SimpleQueue()
    crowd = [
        context.Process(target=_one, args=(called, arguments, barrier, results))
        for _ in range(processes)
    ]
    for process in crowd:
        process.start()
    returned = [results.get() for _ in crowd]
    for process in crowd:
        process.join(END_WITHIN_S)
    failed = [value["failed"] for value in returned if isinstance(value, dict)]
    if failed:
        raise RuntimeError(f"{len(failed)} of {processes} processes failed: {failed[0]}")
    return returned


def named(function: Callable[..., Any]) -> str:
    """Return the name of the function for `together`."""
    return f"{function.__module__}:{function.__qualname__}"


def _one(name: str, arguments: dict[str, Any], barrier: Barrier, results: Any) -> None:
    module, _, function = name.partition(":")

    def ready() -> None:
        barrier.wait(BEGIN_WITHIN_S)

    try:
        found = getattr(importlib.import_module(module), function)
        results.put(found(**arguments, ready=ready))
    except Exception as error:  # noqa: BLE001  # the parent waits for a result of each process
        barrier.abort()
        results.put({"failed": repr(error)})
