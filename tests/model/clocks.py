"""The broker's clock, set by hand: it stands still until it is advanced."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from fakeredis import _helpers
from fakeredis._socket import _base
from fakeredis.commands_mixins import server_mixin

from reliq.engines.redis import scripts
from tests.support.lua import with_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import redis

BEGINNING_MS = 1_700_000_000_000
_TIME = "redis.call('TIME')"
_KEY = "model:clock"


class Clock:
    """What scripts take for the time."""

    lapses_within_ms = 2
    """How exact the server is about a key's own expiry, which is not a script's."""

    def __init__(self) -> None:
        self.now = BEGINNING_MS

    def advance(self, ms: int) -> None:
        """Let exactly so much time pass."""
        self.now += ms

    def hold(self, key: str, remaining_ms: int) -> None:
        """Let a key with an expiry have so long to go."""


class FakeClock(Clock):
    """In place of the module `time` in fakeredis."""

    def time(self) -> float:
        """Return the time in s; in the middle of a ms, so that no rounding changes which."""
        return (self.now + 0.5) / 1000

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


class ScriptedClock(Clock):
    """In place of TIME in the scripts that a real server runs.

    A real server's own clock cannot be set; that of the scripts is a key. Expiries of
    keys still run by the server's: they are set anew before each step.
    """

    lapses_within_ms = 10_000

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self._client = client
        self.advance(0)

    def advance(self, ms: int) -> None:
        """Let exactly so much time pass."""
        super().advance(ms)
        self._client.hset(_KEY, mapping={"s": self.now // 1000, "us": self.now % 1000 * 1000 + 500})

    def hold(self, key: str, remaining_ms: int) -> None:
        """Let a key with an expiry have so long to go."""
        if remaining_ms > 0:
            self._client.pexpire(key, remaining_ms)
        else:
            self._client.delete(key)

    _read = f"redis.call('HMGET', '{_KEY}', 's', 'us')"
    """How a script asks for the time."""

    @classmethod
    @contextlib.contextmanager
    def installed(cls) -> Iterator[None]:
        """Let all scripts of the package read the key."""
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
    """The same in a cluster: a script reads it in its own slot, so each slot has a key."""

    _read = f"redis.call('HMGET', '{_KEY}:' .. string.match(KEYS[1], '%b{{}}'), 's', 'us')"

    def __init__(self, client_of: Callable[[str], redis.Redis], tags: Sequence[str]) -> None:
        """Set it in the slots of *tags*; *client_of* a key is that of the node that has it."""
        self._client_of = client_of
        self._keys = [f"{_KEY}:{{{tag}}}" for tag in tags]
        super().__init__(client_of(self._keys[0]))

    def advance(self, ms: int) -> None:
        """Let exactly so much time pass."""
        Clock.advance(self, ms)
        now = {"s": self.now // 1000, "us": self.now % 1000 * 1000 + 500}
        for key in self._keys:
            self._client_of(key).hset(key, mapping=now)

    def hold(self, key: str, remaining_ms: int) -> None:
        """Let a key with an expiry have so long to go."""
        self._client = self._client_of(key)
        super().hold(key, remaining_ms)
