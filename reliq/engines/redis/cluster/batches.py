"""Batches over a cluster: each is at the node of its slot, which may be lost."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from ....errors import BrokerUnavailable
from .. import keys
from ..batches import RedisBatches
from .slots import slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..stream import Reply
    from .slots import Place
    from .wire import ClusterWire

# So long a slot may be on its way; what is left between two nodes never answers.
_PATIENCE_S = 2.0
_LOOK_EVERY_S = 0.1


class ClusterBatches(RedisBatches):
    """See :class:`reliq.store.jobs.Batches`."""

    def __init__(
        self,
        wire: ClusterWire,
        prefix: str,
        answering: Callable[[], tuple[Any, Mapping[Place | None, str]]],
    ) -> None:
        super().__init__(wire, prefix)
        self._cluster = wire
        self._answering = answering

    def _records(self, batches: Sequence[str], fields: Sequence[str]) -> list[Reply]:
        """Return the reply for each; of a node that does not answer the error, without waiting."""
        _, lost = self._answering()
        replies: dict[str, Reply] = {}
        for batch in batches:
            place = self._cluster.slots.place_of(self._slot(batch))
            if place in lost:
                replies[batch] = BrokerUnavailable(f"{place or 'no node'}: {lost[place]}")
            else:
                arrived = partial(replies.__setitem__, batch)
                self._cluster.post(self._asked(batch, fields), arrived)
        until = monotonic() + _PATIENCE_S
        while len(replies) < len(batches) and monotonic() < until:
            # Nodes are waited for one by one: behind one that is silent others have replied.
            self._cluster.wait_for_replies(_LOOK_EVERY_S)
            self._cluster.receive()
        return [replies.get(batch) or self._stuck(batch) for batch in batches]

    def _slot(self, batch: str) -> int:
        return slot_of(keys.batch_keys(self._prefix, batch).batch)

    def _stuck(self, batch: str) -> BrokerUnavailable:
        slot = self._slot(batch)
        return BrokerUnavailable(
            f"{self._cluster.slots.place_of(slot) or 'no node'}: slot {slot} was not served within "
            f"{_PATIENCE_S:g} s: {self._cluster.posts.reason(slot)}"
        )
