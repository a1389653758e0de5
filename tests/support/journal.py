"""A journal of the events of tasks, which survives a SIGKILL.

Every event is one short line (`lines.py`). It is not stored in Redis, because the tests put Redis
under stress.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from tests.support import lines
from tests.support.waiting import wait_until

STARTED = "started"
FINISHED = "finished"


class Entry(NamedTuple):
    """One line. `key` is usually a task id; `at` is CLOCK_MONOTONIC, equal in all processes."""

    event: str
    key: str
    pid: int
    at: float


class Journal:
    """Written by tasks and read by tests; each line is read once."""

    def __init__(self, path: str | Path) -> None:
        self.path = os.fspath(path)
        self._fd: int | None = None
        self._reading = threading.Lock()
        self._read_bytes = 0
        self._entries: list[Entry] = []
        self._by_key: defaultdict[str, list[Entry]] = defaultdict(list)
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

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
        """Return the entries so far, oldest first, filtered by event and key."""
        with self._reading:
            self._read()
            found = self._entries if key is None else self._by_key.get(key, [])
            return [entry for entry in found if event in (None, entry.event)]

    def _read(self) -> None:
        try:
            with Path(self.path).open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
        except FileNotFoundError:
            return
        end = new.rfind(b"\n") + 1  # the rest may be a partial line
        self._read_bytes += end
        for line in lines.whole(new[:end].decode("ascii")):
            event, key, pid, at = line.split(" ")
            entry = Entry(event, key, int(pid), float(at))
            self._entries.append(entry)
            self._by_key[key].append(entry)
            self._counts[event][key] += 1

    def _counted(self, event: str) -> Counter[str]:
        with self._reading:
            self._read()
            return self._counts[event].copy()

    def runs(self, key: str) -> int:
        """Return the number of starts of the task."""
        return len(self.entries(STARTED, key))

    def started(self) -> Counter[str]:
        """Return the number of starts of each task."""
        return self._counted(STARTED)

    def finished(self) -> Counter[str]:
        """Return the number of ends of each task."""
        return self._counted(FINISHED)

    def wait_started(self, key: str, *, times: int = 1, timeout_s: float = 60.0) -> Entry:
        """Wait until the task was started *times* times; return the last start."""
        return self.wait(STARTED, key, times=times, timeout_s=timeout_s)

    def wait_finished(self, key: str, *, times: int = 1, timeout_s: float = 60.0) -> Entry:
        """Wait until the task finished *times* times; return the last end."""
        return self.wait(FINISHED, key, times=times, timeout_s=timeout_s)

    def wait(
        self, event: str, key: str | None = None, *, times: int = 1, timeout_s: float = 60.0
    ) -> Entry:
        """Wait until *times* of these entries exist; return the last one."""

        def found() -> list[Entry]:
            entries = self.entries(event, key)
            return entries if len(entries) >= times else []

        return wait_until(
            found,
            timeout_s=timeout_s,
            what=lambda: f"{times} x {event} {key}; have {len(self.entries(event, key))}",
        )[-1]
