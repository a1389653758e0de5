"""The broker's clock under test control: it stands still until the model advances it."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from fakeredis import _helpers
from fakeredis._socket import _base
from fakeredis.commands_mixins import server_mixin

from reliq.lua import scripts
from tests.support.lua import with_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import redis

BEGINNING_MS = 1_700_000_000_000
_TIME = "redis.call('TIME')"
_KEY = "model:clock"


class Clock:
    """The time as scripts read it."""

    lapses_within_ms = 2
    """The tolerance for a key's own expiry, which follows the server's clock."""

    def __init__(self) -> None:
        self.now = BEGINNING_MS

    def advance(self, ms: int) -> None:
        """Advance the clock by exactly *ms*."""
        self.now += ms

    def hold(self, key: str, remaining_ms: int) -> None:
        """Set the remaining time of a key with an expiry."""


class FakeClock(Clock):
    """A replacement for the module `time` in fakeredis."""

    def time(self) -> float:
        """Return the time in s, at the middle of a ms, so that rounding cannot change the ms."""
        return (self.now + 0.5) / 1000

    def __getattr__(self, name: str) -> Any:
        """Return every other attribute of the real module."""
        return getattr(time, name)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Install this clock in every fakeredis of this process."""
        modules: tuple[Any, ...] = (_helpers, _base, server_mixin)
        for module in modules:
            module.time = self
        try:
            yield
        finally:
            for module in modules:
                module.time = time


class ScriptedClock(Clock):
    """A replacement for TIME in the scripts of a real server.

    A real server's own clock cannot be set, so its scripts read the time from a key. Expiries of
    keys still follow the server's clock, and are set again before each step.
    """

    lapses_within_ms = 10_000

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self._client = client
        self.advance(0)

    def advance(self, ms: int) -> None:
        """Advance the clock by exactly *ms*."""
        super().advance(ms)
        self._client.hset(_KEY, mapping={"s": self.now // 1000, "us": self.now % 1000 * 1000 + 500})

    def hold(self, key: str, remaining_ms: int) -> None:
        """Set the remaining time of a key with an expiry."""
        if remaining_ms > 0:
            self._client.pexpire(key, remaining_ms)
        else:
            self._client.delete(key)

    _read = f"redis.call('HMGET', '{_KEY}', 's', 'us')"
    """The Lua expression with which a script reads the time."""

    @classmethod
    @contextlib.contextmanager
    def installed(cls) -> Iterator[None]:
        """Make all scripts of the package read the key."""
        whole = {n: s for n, s in vars(scripts).items() if isinstance(s, scripts.Script)}
        for name, script in whole.items():
            text = script.text.replace(_TIME, cls._read)
            setattr(scripts, name, with_text(script, text))
        try:
            yield
        finally:
            for name, script in whole.items():
                setattr(scripts, name, script)


class ClusterClock(ScriptedClock):
    """A clock for a cluster, with a key in each slot, because a script reads only its own slot."""

    _read = f"redis.call('HMGET', '{_KEY}:' .. string.match(KEYS[1], '%b{{}}'), 's', 'us')"

    def __init__(self, client_of: Callable[[str], redis.Redis], tags: Sequence[str]) -> None:
        """Set the clock in the slots of *tags*; *client_of* returns the client of a key's node."""
        self._client_of = client_of
        self._keys = [f"{_KEY}:{{{tag}}}" for tag in tags]
        super().__init__(client_of(self._keys[0]))

    def advance(self, ms: int) -> None:
        """Advance the clock by exactly *ms*."""
        Clock.advance(self, ms)
        now = {"s": self.now // 1000, "us": self.now % 1000 * 1000 + 500}
        for key in self._keys:
            self._client_of(key).hset(key, mapping=now)

    def hold(self, key: str, remaining_ms: int) -> None:
        """Set the remaining time of a key with an expiry."""
        self._client = self._client_of(key)
        super().hold(key, remaining_ms)
