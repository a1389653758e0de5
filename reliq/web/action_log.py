"""The log of actions, and operations: long actions, each in a thread of its own, in steps."""

from __future__ import annotations

import json
import secrets
import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, time
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..errors import ConfigurationError, ReliqError, logger
from ..forks import OwnLock
from ..printable import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..admin import Inspector
    from .brokers import Broker

    Steps: TypeAlias = Callable[[Inspector], Iterator[int]]

_ENTRIES_KEPT = 1000
_KEPT = 200
_FILES_KEPT = 5
_MOST_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One logged action."""

    number: int
    at_ms: int
    """By this machine's clock, since the epoch."""
    user: str
    action: str
    broker: str
    target: str
    """The changed object: a queue, a batch, dead letters."""
    outcome: str
    failed: bool = False


class ActionLog:
    """The last thousand actions of this process; each is also sent to the logger ``reliq``.

    With *path*, each is also appended to that file as a line of JSON. Raises ConfigurationError
    if the file cannot be written. Thread-safe.
    """

    _lock = OwnLock()

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: deque[Entry] = deque(maxlen=_ENTRIES_KEPT)
        self._numbers = count(1)
        if path is not None:
            try:
                path.touch(0o600)
                path.open("a", encoding="utf-8").close()
            except OSError as exc:
                raise ConfigurationError(
                    f"cannot write the log of actions to {str(path)!r}: {exc.strerror}"
                ) from exc

    def note(
        self,
        user: str,
        action: str,
        broker: str,
        target: str,
        outcome: str,
        *,
        failed: bool = False,
    ) -> Entry:
        """Log an action that succeeded or failed; return its entry."""
        user, action, broker, target, outcome = map(plain, (user, action, broker, target, outcome))
        number, at_ms = next(self._numbers), int(time() * 1000)
        entry = Entry(number, at_ms, user, action, broker, target, outcome, failed)
        say = logger.warning if failed else logger.info
        say("web: %s: %s %s at %s: %s", user, action, target, broker, outcome)
        with self._lock:
            self._entries.appendleft(entry)
            if self._path is None:
                return entry
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(entry)) + "\n")
            except OSError:  # the action is done, and the process has logged it
                logger.exception("web: cannot write the log of actions to %s", self._path)
        return entry

    def entries(self, limit: int, skip: int = 0) -> list[Entry]:
        """Return entries, newest first."""
        with self._lock:
            return list(islice(self._entries, skip, skip + limit))

    def entry(self, number: int) -> Entry | None:
        """Return one entry; None if it is no longer kept."""
        with self._lock:
            return next((entry for entry in self._entries if entry.number == number), None)

    def __len__(self) -> int:
        """Return the number of kept entries."""
        return len(self._entries)


State: TypeAlias = Literal["running", "done", "stopped", "failed"]


@dataclass(slots=True)
class Operation:
    """The current state of one operation. Only its own thread changes it, except `stopped`."""

    user: str
    action: str
    broker: str
    target: str
    total: int
    """Messages to process, as counted when the operation started."""
    back: str
    """The page that started it."""
    file: str = ""
    """The file that it writes, for download when it is done; "" for none."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    done: int = 0
    state: State = "running"
    error: str = ""
    stopped: bool = False
    """Whether it ends after its current step."""
    began: float = field(default_factory=monotonic)
    ended: float | None = None

    @property
    def seconds(self) -> float:
        """The run time so far, or in total."""
        return (self.ended or monotonic()) - self.began

    @property
    def share(self) -> float:
        """The progress, from 0 to 1."""
        if self.state == "done":
            return 1.0
        return min(self.done / self.total, 1.0) if self.total else 0.0


class Operations:
    """The operations of this process. Thread-safe.

    If the process ends, start the operation again: no message is lost or duplicated.
    """

    _lock = OwnLock()

    def __init__(self, log: ActionLog) -> None:
        self._log = log
        self._operations: dict[str, Operation] = {}
        self._folder: TemporaryDirectory[str] | None = None

    def new_file(self) -> str:
        """Return the path of a file for an operation to write; deleted with the process."""
        with self._lock:
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="reliq-web-")
            return str(Path(self._folder.name) / secrets.token_hex(8))

    def begin(self, made: Operation, broker: Broker, steps: Steps) -> None:
        """Start an operation of *steps* in a thread; raise ReliqError if too many run."""
        with self._lock:
            # Exports, which viewers may start, count apart from changes.
            running = sum(
                item.state == "running" and bool(item.file) == bool(made.file)
                for item in self._operations.values()
            )
            if running >= _MOST_AT_ONCE:
                raise ReliqError("too many operations are running; wait until one ends")
            self._operations[made.id] = made
            ended = [item for item in self._operations.values() if item.state != "running"]
            for item in ended[: max(len(ended) - _KEPT, 0)]:
                del self._operations[item.id]
            files = [item for item in ended if item.file]
            for item in files[: max(len(files) - _FILES_KEPT, 0)]:
                Path(item.file).unlink(missing_ok=True)
        self._note(made, f"started: {made.total}")
        run = partial(self._run, made, broker, steps)
        threading.Thread(target=run, name="reliq-web-operation", daemon=True).start()

    def _note(self, made: Operation, outcome: str, *, failed: bool = False) -> None:
        given = made.user, made.action, made.broker, made.target, outcome
        self._log.note(*given, failed=failed)

    def _run(self, made: Operation, broker: Broker, steps: Steps) -> None:
        state: State = "done"
        try:
            with broker.inspector() as inspector:
                for step in steps(inspector):
                    made.done += step
                    if made.stopped:
                        state = "stopped"
                        break
        except ReliqError as exc:
            state, made.error = "failed", str(exc)
        except Exception:
            logger.exception("web: %s %s failed", made.action, made.target)
            state, made.error = "failed", "see the log of reliq web for the cause"
        made.ended, made.state = monotonic(), state
        text = f"{state} after {made.done} of {made.total}"
        self._note(made, f"{text}: {made.error}" if made.error else text, failed=state == "failed")

    def stop(self, name: str) -> Operation | None:
        """Stop an operation after its current step; return it, or None if it is not running."""
        operation = self.get(name)
        if operation is None or operation.state != "running":
            return None
        operation.stopped = True
        return operation

    def get(self, name: str) -> Operation | None:
        """Return an operation; None if it is unknown."""
        with self._lock:
            return self._operations.get(name)

    def all(self) -> list[Operation]:
        """Return all kept operations, newest first."""
        with self._lock:
            return list(self._operations.values())[::-1]

    def close(self) -> None:
        """Remove the files that operations have written."""
        with self._lock:
            folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()
