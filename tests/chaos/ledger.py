"""The ledger: confirmed publishes and runs, written where no fault can delete them.

One line per event (`tests/support/lines.py`). It is not stored in Redis, which is killed. Times
are CLOCK_MONOTONIC, equal in all processes.

```
P time id countdown queue    a publish begins; the queue may be missing
C time id                    it has returned: the message is confirmed
E time id error              it has raised: the result is unknown
S time id retries tag attempt worker pid     a run starts
R time id retries tag attempt worker pid     it asks for a retry, which is a new message
T time id retries tag attempt worker pid     the retry is published
F time id retries tag attempt worker pid     it is done
N time id retries tag attempt worker pid     it is about to raise reliq.Failed
V time id retries tag attempt worker pid     it is about to raise another exception
J time id batch queue        the task is a job of that batch (by its publisher and each run)
U time id                    its publish was refused: it is certainly not stored
O time batch parent          a batch is about to be opened; "-": it is not nested
A time batch                 it is open
L time batch                 it is sealed
K time batch                 it is about to be cancelled
M time batch                 it is cancelled
```
"""

from __future__ import annotations

import os
import time
import zlib
from typing import TYPE_CHECKING, NamedTuple

from tests.support import lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INTENT, CONFIRMED, FAILED = "P", "C", "E"
STARTED, RETRIED, HANDED_ON, FINISHED = "S", "R", "T", "F"
REFUSED, RAISED = "N", "V"
ENDS = frozenset({FINISHED, REFUSED, RAISED})
"""The ends of a run without a retry."""
OF_A_RUN = frozenset({STARTED, RETRIED, HANDED_ON, *ENDS})
JOINED, UNSENT = "J", "U"
OPENING, OPENED, SEALED, CANCELLING, CANCELLED = "O", "A", "L", "K", "M"
OF_A_BATCH = frozenset({OPENING, OPENED, SEALED, CANCELLING, CANCELLED})
"""Events whose id is a batch's, not a task's."""

_LINES_AT_ONCE = 3_000_000
"""A larger ledger is judged in parts, so that memory does not grow with a run."""
_BYTES_OF_A_LINE = 60

IMMEDIATE, DELAYED, RETRYING, URGENT, LONG, POISON = "i", "d", "r", "u", "l", "x"
FAILING, RAISING, MAPPED, CALLBACK, EARLY = "n", "v", "m", "c", "e"
_LENGTH_OF_A_UUID = 36
KINDS = {
    IMMEDIATE: "immediate",
    DELAYED: "delayed",
    RETRYING: "retried",
    URGENT: "prioritised",
    LONG: "longer than its lease",
    POISON: "poison",
    FAILING: "failing",
    RAISING: "raising",
    MAPPED: "mapped",
    CALLBACK: "callback",
    EARLY: "acked early",
}


def kind_of(task_id: str) -> str:
    """Return the kind of a task: the first letter of its id, unless `batch.map` made the id."""
    return MAPPED if len(task_id) == _LENGTH_OF_A_UUID else task_id[0]


def callback_id(batch: str, name: str) -> str:
    """Return the task id of a batch's callback."""
    return f"{CALLBACK}{batch}.{name}"


class Line(NamedTuple):
    """One event; fields that its kind does not have are empty."""

    event: str
    at: float
    id: str
    countdown: float = 0.0
    error: str = ""
    retries: int = 0
    tag: str = ""
    attempt: int = 0
    """Failed deliveries before this one, as counted by the broker."""
    worker: str = ""
    pid: int = 0
    queue: str = ""
    batch: str = ""
    """The batch of a job, or the parent of a batch."""


class Writer:
    """Appends to one file; safe from any process and thread, also across a fork."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, task_id: str, *rest: object) -> None:
        """Append one line."""
        words = (event, f"{time.monotonic():.4f}", task_id, *rest)
        lines.append(self._fd, " ".join(map(str, words)))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def parse(text: str) -> Line:
    """Return the event in one line."""
    words = text.split(" ")
    event, at, task_id = words[0], float(words[1]), words[2]
    if event in OF_A_RUN:
        retries, tag, attempt, worker, pid = words[3:8]
        return Line(
            event,
            at,
            task_id,
            retries=int(retries),
            tag=tag,
            attempt=int(attempt),
            worker=worker,
            pid=int(pid),
        )
    if event == INTENT:
        queue = words[4] if len(words) > 4 else ""
        return Line(event, at, task_id, countdown=float(words[3]), queue=queue)
    if event == JOINED:
        return Line(event, at, task_id, batch=words[3], queue=words[4])
    if event == OPENING:
        return Line(event, at, task_id, batch="" if words[3] == "-" else words[3])
    return Line(event, at, task_id, error=words[3] if event == FAILED else "")


def files(directory: Path) -> list[Path]:
    """Return the files of the ledger in *directory*."""
    return sorted(directory.glob("*.ledger"))


def read(directory: Path) -> Iterator[Line]:
    """Yield every event of the ledger, file by file."""
    for path in files(directory):
        with path.open(encoding="ascii") as file:
            for text in file:  # line by line: a long run's ledger does not fit into memory
                for line in lines.whole(text):
                    yield parse(line)


def in_parts(directory: Path) -> Iterator[list[Line]]:
    """Yield the events in parts that fit into memory, with all events of a task together."""
    size = sum(path.stat().st_size for path in files(directory))
    parts = 1 + size // (_LINES_AT_ONCE * _BYTES_OF_A_LINE)
    for part in range(parts):
        yield [
            line
            for line in read(directory)
            if parts == 1 or zlib.crc32(line.id.encode()) % parts == part
        ]


_FOLLOWED = ENDS | {CONFIRMED, JOINED, CANCELLING}


class Tail:
    """Follows the ledger while it is written: tasks in progress and missing ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}
        self._early: set[str] = set()
        self._batch_of: dict[str, str] = {}
        self._cancelled: set[str] = set()
        self.outstanding: set[str] = set()
        """Confirmed tasks that have not finished, except those that need not finish.

        These are poison, tasks that are acked early, and jobs of a cancelled batch.
        """
        self.poison: set[str] = set()
        """Confirmed poison."""
        self.confirmed = self.finished = 0
        self.last_finish = time.monotonic()

    def look(self) -> None:
        """Read the events since the last call."""
        for path in files(self._directory):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            ended = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(ended)
            for text in lines.whole(ended.decode("ascii")):
                if text[0] in _FOLLOWED:
                    self._note(parse(text))

    def _note(self, line: Line) -> None:
        event, task_id = line.event, line.id
        if event == JOINED:
            self._batch_of[task_id] = line.batch
        elif event == CANCELLING:
            self._cancelled.add(task_id)
            of_batch = {one for one in self.outstanding if self._batch_of.get(one) == task_id}
            self.outstanding -= of_batch
        elif event == CONFIRMED:
            self.confirmed += 1
            self._confirmed(task_id)
        elif kind_of(task_id) == EARLY:
            self.finished += 1
        elif kind_of(task_id) != CALLBACK:
            self.finished += 1
            self.last_finish = time.monotonic()
            if task_id in self.outstanding:
                self.outstanding.discard(task_id)
            else:  # before its publisher recorded the confirmation, or repeated
                self._early.add(task_id)

    def _confirmed(self, task_id: str) -> None:
        if kind_of(task_id) == POISON:
            self.poison.add(task_id)
        elif kind_of(task_id) == EARLY:
            pass  # it ends with a killed process
        elif task_id in self._early:
            self._early.discard(task_id)
        elif self._batch_of.get(task_id) not in self._cancelled:
            self.outstanding.add(task_id)
