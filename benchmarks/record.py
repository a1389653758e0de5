"""Counts the tasks that ran, in far less than a microsecond per task.

Each thread of each process keeps a count and two times in 24 bytes of its own memory-mapped file.
This needs no lock and no system call, and the data survives the process.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DIRECTORY = "BENCHMARK_RECORD"
_LAYOUT = struct.Struct("=qqq")
_FINISHED = "finished"


# gevent makes a local of each greenlet, and each task has one; all its tasks share a thread.
_local: Any = SimpleNamespace() if "gevent" in sys.modules else threading.local()


def _open() -> memoryview[int]:
    """Map the calling thread's three numbers: tasks, first and last time (monotonic, ns)."""
    path = Path(os.environ[DIRECTORY]) / f"{os.getpid()}-{threading.get_native_id()}"
    path.write_bytes(bytes(_LAYOUT.size))
    with path.open("r+b") as file:
        numbers = memoryview(mmap.mmap(file.fileno(), _LAYOUT.size)).cast("q")
    _local.numbers = numbers
    return numbers


def mark() -> None:
    """Record that a task runs now."""
    try:
        numbers = _local.numbers
    except AttributeError:
        numbers = _open()
    now = time.monotonic_ns()
    if not numbers[0]:
        numbers[1] = now
    numbers[2] = now
    numbers[0] += 1


@dataclass(frozen=True)
class Ran:
    """The sum of the records of all threads and processes."""

    tasks: int
    seconds: float
    began_ns: int = 0
    """When the first task ran (monotonic clock)."""


def read(directory: Path) -> Ran:
    """Add up the records in the directory so far."""
    noted = []
    for path in directory.iterdir():
        content = path.read_bytes()
        if len(content) == _LAYOUT.size:
            noted.append(_LAYOUT.unpack(content))
    noted = [numbers for numbers in noted if numbers[0]]
    if not noted:
        return Ran(0, 0.0)
    first, last = min(n[1] for n in noted), max(n[2] for n in noted)
    return Ran(sum(n[0] for n in noted), (last - first) / 1e9, first)


def mark_finished() -> None:
    """Record that a task that follows all others runs now: a callback."""
    path = Path(os.environ[DIRECTORY]) / _FINISHED
    partly = path.with_suffix(".partly")
    partly.write_text(f"{time.monotonic_ns():40}")
    partly.rename(path)


def finished_ns(directory: Path) -> int:
    """Return when such a task ran (monotonic clock); 0: not yet."""
    path = directory / _FINISHED
    return int(path.read_text()) if path.exists() else 0
