"""The tasks of a demo run, without Celery, and the record that they write.

The record is a file of short lines, opened to append, so each line is written completely or not
at all. It is independent of the broker, which is under test.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

READY, RECEIVED, STARTED, FINISHED = "ready", "received", "started", "finished"


def hold_file(record: str | Path) -> Path:
    """Return the file that holds running tasks before their end, while it exists."""
    return Path(f"{record}.hold")


def now_ms() -> float:
    """Return milliseconds of a clock that all processes of this machine share."""
    return time.monotonic_ns() / 1e6


def write(path: str, kind: str, worker: str, task: int = -1) -> None:
    """Append one line to the record at *path*."""
    line = f"{kind} {now_ms():.3f} {worker} {task}\n"
    with Path(path).open("ab", buffering=0) as file:
        file.write(line.encode())


@dataclass(slots=True)
class TaskHistory:
    """Times (in ms) and workers of the receipts, starts and ends of one task."""

    received: list[tuple[float, str]] = field(default_factory=list)
    started: list[tuple[float, str]] = field(default_factory=list)
    finished: list[tuple[float, str]] = field(default_factory=list)


class Record:
    """Reads the growing file, and reports the events so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.tasks: dict[int, TaskHistory] = {}
        self.ready: dict[str, float] = {}
        self.finished = 0

    def refresh(self) -> bool:
        """Read new lines; return whether there were any."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return False
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode().splitlines():
            self._take(line)
        return bool(whole)

    def _take(self, line: str) -> None:
        kind, at, worker, task = line.split()
        if kind == READY:
            self.ready[worker] = float(at)
            return
        history = self.tasks.setdefault(int(task), TaskHistory())
        if kind == FINISHED:
            self.finished += not history.finished
        getattr(history, kind).append((float(at), worker))

    def running(self, worker: str) -> dict[int, TaskHistory]:
        """Return the unfinished tasks that *worker* started."""
        return self._unfinished(worker, "started")

    def held(self, worker: str) -> set[int]:
        """Return the unfinished tasks that *worker* received."""
        return set(self._unfinished(worker, "received"))

    def _unfinished(self, worker: str, what: str) -> dict[int, TaskHistory]:
        return {
            task: history
            for task, history in self.tasks.items()
            if not history.finished and any(by == worker for _, by in getattr(history, what))
        }


SETTINGS = "RELIQ_DEMO"
SHORTEST_MS, LONGEST_MS = 8, 20


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a process of the demo, passed in one environment variable."""

    process: str
    broker_url: str
    transport_options: Mapping[str, Any]
    queue: str
    record: str
    tasks: int
    first: int = 0

    def to_environment(self) -> dict[str, str]:
        """Return the variable for the environment of a process."""
        return {SETTINGS: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Settings:
        """Return the settings of this process."""
        return cls(**json.loads(os.environ[SETTINGS]))


def lasts_ms(number: int) -> int:
    """Return the minimum duration of task *number*, which is the same in every run."""
    return SHORTEST_MS + number * 7 % (LONGEST_MS - SHORTEST_MS + 1)
