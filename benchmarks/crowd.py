"""Runs one function in several processes at the same time, begun together.

Called in a process of `benchmarks.child`: the others are forked from it, before any of them
has connected, so that they share its imports and 64 of them start in a second.
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
    """Call `module:function` once in each process; return what each returned.

    The function gets `ready`, which it calls once it is connected; all return from it together.
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
    """Return the name by which `together` finds the function."""
    return f"{function.__module__}:{function.__qualname__}"


def _one(name: str, arguments: dict[str, Any], barrier: Barrier, results: Any) -> None:
    module, _, function = name.partition(":")

    def ready() -> None:
        barrier.wait(BEGIN_WITHIN_S)

    try:
        found = getattr(importlib.import_module(module), function)
        results.put(found(**arguments, ready=ready))
    except Exception as error:  # noqa: BLE001  # the parent waits for an answer of each
        barrier.abort()
        results.put({"failed": repr(error)})
