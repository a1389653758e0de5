"""The claims of ``reliq.once`` over Redis."""

from __future__ import annotations

from . import keys, scripts
from .base import StoreBase


class RedisClaims(StoreBase):
    """What a store knows of claims."""

    def claim(self, name: str, token: str, keep_ms: int, *, finished: bool = False) -> int:
        """Take the claim on *name*, or extend, finish or (0 ms) give up one's own."""
        names = scripts.ONCE.named(
            once=keys.once(self._prefix, name), guard=keys.guard(self._prefix, name)
        )
        args = (token, keep_ms, 1 if finished else 0)
        return int(self._wire.execute(scripts.ONCE, names, args))
