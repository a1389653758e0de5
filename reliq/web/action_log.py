"""The log of actions: who has changed what, when, and what came of it."""

from __future__ import annotations

import json
import logging
from collections import deque
from dataclasses import asdict, dataclass
from itertools import count, islice
from time import time
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from ..forks import OwnLock
from ..printable import plain

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("reliq")

_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """One action."""

    number: int
    at_ms: int
    """By this machine's clock."""
    user: str
    action: str
    broker: str
    target: str
    """What was changed: a queue, a batch, which dead letters."""
    outcome: str
    failed: bool = False


class ActionLog:
    """The last thousand actions of this process; each also goes to the logger ``reliq``.

    With a *path* each is appended to that file, too, as a line of JSON. Raises ConfigurationError
    where that cannot be written. Thread-safe.
    """

    _lock = OwnLock()

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: deque[Entry] = deque(maxlen=_KEPT)
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
        """Note an action that was done or has failed; return its entry."""
        user, action, broker, target, outcome = map(plain, (user, action, broker, target, outcome))
        number, at_ms = next(self._numbers), int(time() * 1000)
        entry = Entry(number, at_ms, user, action, broker, target, outcome, failed)
        say = logger.warning if failed else logger.info
        say("web: %s: %s %s at %s: %s", user, action, target, broker, outcome)
        with self._lock:
            self._entries.appendleft(entry)
            self._append(entry)
        return entry

    def _append(self, entry: Entry) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(entry)) + "\n")
        except OSError:  # what was done is done: it is still in the log of the process
            logger.exception("web: the log of actions cannot be written to %s", self._path)

    def entries(self, limit: int, skip: int = 0) -> list[Entry]:
        """Return entries, the last first."""
        with self._lock:
            return list(islice(self._entries, skip, skip + limit))

    def entry(self, number: int) -> Entry | None:
        """Return one, unless it is too old."""
        with self._lock:
            return next((entry for entry in self._entries if entry.number == number), None)

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._entries)
