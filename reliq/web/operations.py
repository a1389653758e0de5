"""Actions that take their time: each in a thread of its own, step by step, with a progress."""

from __future__ import annotations

import logging
import secrets
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..errors import ReliqError
from ..forks import OwnLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..admin import Inspector
    from .action_log import ActionLog
    from .brokers import Broker

    Steps: TypeAlias = Callable[[Inspector], Iterator[int]]

logger = logging.getLogger("reliq")

State: TypeAlias = Literal["running", "done", "stopped", "failed"]

_MOST_AT_ONCE = 4
_KEPT = 200
_FILES_KEPT = 5


class BusyError(Exception):
    """As many operations run as may."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, as it is now."""

    user: str
    action: str
    broker: str
    target: str
    total: int
    """How many messages it was about when it began, as far as they were counted."""
    back: str
    """The page from which it was asked for."""
    file: str = ""
    """What it writes, to be fetched when it is done; "" for nothing."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    done: int = 0
    state: State = "running"
    error: str = ""
    began: float = field(default_factory=monotonic)
    ended: float | None = None

    @property
    def seconds(self) -> float:
        """How long it has been running, or ran."""
        return (self.ended or monotonic()) - self.began

    @property
    def share(self) -> float:
        """How much of it is done, from 0 to 1."""
        if self.state == "done":
            return 1.0
        return min(self.done / self.total, 1.0) if self.total else 0.0


class Operations:
    """The operations of this process. Thread-safe.

    One that is cut off with the process has lost and doubled nothing: it is begun again.
    """

    _lock = OwnLock()

    def __init__(self, log: ActionLog) -> None:
        self._log = log
        self._operations: dict[str, Operation] = {}
        self._stopped: set[str] = set()
        self._folder: TemporaryDirectory[str] | None = None

    def new_file(self) -> str:
        """Return the name of a file for an operation to write; it ends with the process."""
        with self._lock:
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="reliq-web-")
            return str(Path(self._folder.name) / secrets.token_hex(8))

    def begin(self, made: Operation, broker: Broker, steps: Steps) -> Operation:
        """Begin to take *steps*, each of which says how many messages it was about.

        Raises BusyError.
        """
        with self._lock:
            # Viewers export: they take no place from who has to change something.
            running = sum(
                item.state == "running" and bool(item.file) == bool(made.file)
                for item in self._operations.values()
            )
            if running >= _MOST_AT_ONCE:
                raise BusyError
            self._operations[made.id] = made
            self._forget_old()
        self._log.note(made.user, made.action, made.broker, made.target, f"begun: {made.total}")
        run = partial(self._run, made, broker, steps)
        threading.Thread(target=run, name="reliq-web-operation", daemon=True).start()
        return made

    def _forget_old(self) -> None:
        ended = [item for item in self._operations.values() if item.state != "running"]
        for item in ended[: max(len(ended) - _KEPT, 0)]:
            del self._operations[item.id]
        files = [item for item in ended if item.file]
        for item in files[: max(len(files) - _FILES_KEPT, 0)]:
            Path(item.file).unlink(missing_ok=True)

    def _run(self, made: Operation, broker: Broker, steps: Steps) -> None:
        state: State = "done"
        error = ""
        try:
            with broker.inspector() as inspector:
                for step in steps(inspector):
                    self._advance(made.id, step)
                    if made.id in self._stopped:
                        state = "stopped"
                        break
        except ReliqError as exc:
            state, error = "failed", str(exc)
        except Exception:
            logger.exception("web: %s %s has failed", made.action, made.target)
            state, error = "failed", "the log of reliq web says why"
        with self._lock:
            ended = replace(self._operations[made.id], state=state, error=error, ended=monotonic())
            self._operations[made.id] = ended
            self._stopped.discard(made.id)
        outcome = f"{state} after {ended.done} of {ended.total}" + (f": {error}" if error else "")
        self._log.note(
            made.user, made.action, made.broker, made.target, outcome, failed=state == "failed"
        )

    def _advance(self, name: str, step: int) -> None:
        with self._lock:
            now = self._operations[name]
            self._operations[name] = replace(now, done=now.done + step)

    def stop(self, name: str) -> bool:
        """Let an operation end after the step that it is at; whether it runs."""
        with self._lock:
            found = self._operations.get(name)
            if found is None or found.state != "running":
                return False
            self._stopped.add(name)
            return True

    def get(self, name: str) -> Operation | None:
        """Return an operation."""
        with self._lock:
            return self._operations.get(name)

    def all(self) -> list[Operation]:
        """Return all that are kept, the last first."""
        with self._lock:
            return list(self._operations.values())[::-1]

    def close(self) -> None:
        """Remove the files that operations have written."""
        with self._lock:
            folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()
