"""The history of queues over Redis: a script notes it, whoever reads it unpacks it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...store.chunks import chunks
from ...store.history import Snapshot, snapshots
from ...store.limits import MINUTE_MS
from ...store.unreadable import left_out
from . import scripts
from .base import StoreBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.protocol import OnResult

# So many queues are noted by one command: about a ms, if each is noted.
_NOTED = 25
_BLOCK = re.compile(rb"[0-9]{1,15}")


class RedisHistory(StoreBase):
    """What a store keeps of its queues' past."""

    def post_snapshots(
        self, queues: Sequence[str], on_result: OnResult[int], every_ms: int = MINUTE_MS
    ) -> None:
        """Note counts and ledger of *queues*, each once a minute: one command for some of them."""
        for names in chunks(queues, _NOTED):
            places = [key for queue in names for key in scripts.SNAPSHOT.of(self._keys(queue))]
            self._wire.post_script(scripts.SNAPSHOT, places, (every_ms,), on_result)

    def history(
        self, queue: str, since_ms: int, now_ms: int, every_ms: int = MINUTE_MS
    ) -> list[Snapshot]:
        """Return the snapshots of *queue* from *since_ms* on, oldest first."""
        flat = self._wire.call(("HGETALL", self._keys(queue).history))
        blocks = {
            int(name): records
            for name, records in zip(flat[::2], flat[1::2], strict=True)
            if _BLOCK.fullmatch(name)
        }
        try:
            return snapshots(blocks, since_ms, now_ms, every_ms)
        except ValueError:
            left_out(self.broker, "histories of queues", [queue])
            return []
