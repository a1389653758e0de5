"""The broker's clock: set by hand where that is possible, waited for where it is not."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Protocol

from fakeredis import _helpers
from fakeredis._socket import _base
from fakeredis.commands_mixins import server_mixin

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BEGINNING_MS = 1_700_000_000_000


class Clock(Protocol):
    """What the broker's scripts take for the time."""

    margin_ms: int
    """How long before and after a step the time is not known to the millisecond."""

    def now(self) -> int:
        """Return the time in ms."""

    def advance(self, ms: int) -> None:
        """Let at least so much time pass."""


class HandClock:
    """Stands still until it is advanced."""

    margin_ms = 0

    def __init__(self) -> None:
        self._ms = _BEGINNING_MS

    def now(self) -> int:
        """Return the time in ms."""
        return self._ms

    def advance(self, ms: int) -> None:
        """Let exactly so much time pass."""
        self._ms += ms

    # -- as fakeredis asks for it, in place of the module `time`

    def time(self) -> float:
        """Return the time in s; in the middle of a ms, so that no rounding changes which."""
        return (self._ms + 0.5) / 1000

    def __getattr__(self, name: str) -> Any:
        """Return everything else from the real one."""
        return getattr(time, name)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Be the clock of every fakeredis of this process."""
        modules: tuple[Any, ...] = (_helpers, _base, server_mixin)
        for module in modules:
            module.time = self
        try:
            yield
        finally:
            for module in modules:
                module.time = time


class ServerClock:
    """The clock of a real server, which goes its own way."""

    margin_ms = 60

    def __init__(self, read: Callable[[], tuple[int, int]]) -> None:
        self._read = read

    def now(self) -> int:
        """Return the time in ms."""
        seconds, microseconds = self._read()
        return seconds * 1000 + microseconds // 1000

    def advance(self, ms: int) -> None:
        """Wait so long, by this clock."""
        until = self.now() + ms
        wait_until(lambda: self.now() >= until, interval_s=min(ms / 2000, 0.02))
