"""What tasks did, written down where a SIGKILL cannot take it back.

Every event is one short line (`lines.py`). Redis is not used, because Redis is what the
tests put under stress.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.support import lines
from tests.support.waiting import wait_until

STARTED = "started"
FINISHED = "finished"


class Entry(NamedTuple):
    """One line: `key` is a task id, mostly; `at` is CLOCK_MONOTONIC, the same in all processes."""

    event: str
    key: str
    pid: int
    at: float


class Journal:
    """Writes entries in the tasks, reads them in the tests."""

    def __init__(self, path: str | Path) -> None:
        self.path = os.fspath(path)
        self._fd: int | None = None

    def write(self, event: str, key: str) -> None:
        """Append one entry; safe from any process and thread."""
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        lines.append(self._fd, f"{event} {key} {os.getpid()} {time.monotonic():.6f}")

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def entries(self, event: str | None = None, key: str | None = None) -> list[Entry]:
        """Return the entries so far, oldest first, filtered."""
        try:
            text = Path(self.path).read_text(encoding="ascii")
        except FileNotFoundError:
            return []
        parts = (line.split(" ") for line in lines.whole(text))
        return [
            Entry(what, which, int(pid), float(at))
            for what, which, pid, at in parts
            if event in (None, what) and key in (None, which)
        ]

    def runs(self, key: str) -> int:
        """Return how often the task was started."""
        return len(self.entries(STARTED, key))

    def started(self) -> Counter[str]:
        """Return how often each task was started."""
        return Counter(entry.key for entry in self.entries(STARTED))

    def finished(self) -> Counter[str]:
        """Return how often each task finished."""
        return Counter(entry.key for entry in self.entries(FINISHED))

    def wait_started(self, key: str, *, times: int = 1, timeout_s: float = 30.0) -> Entry:
        """Wait until the task was started so many times; return the last start."""
        return self.wait(STARTED, key, times=times, timeout_s=timeout_s)

    def wait_finished(self, key: str, *, times: int = 1, timeout_s: float = 30.0) -> Entry:
        """Wait until the task finished so many times; return the last end."""
        return self.wait(FINISHED, key, times=times, timeout_s=timeout_s)

    def wait(
        self, event: str, key: str | None = None, *, times: int = 1, timeout_s: float = 30.0
    ) -> Entry:
        """Wait until there are so many of these entries; return the last one."""

        def found() -> list[Entry]:
            entries = self.entries(event, key)
            return entries if len(entries) >= times else []

        return wait_until(
            found,
            timeout_s=timeout_s,
            what=lambda: f"{times} x {event} {key}; have {len(self.entries(event, key))}",
        )[-1]
