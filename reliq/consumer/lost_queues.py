"""LostQueues: which consumed queues nothing can be had of, as the node that has them is away.

Says so when that begins and when it ends, each once. Over a broker that is one server it has
nothing to say: there the connection is lost.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

from ..message.queue_names import partition_names

if TYPE_CHECKING:
    from ..store.protocol import Store
    from .registration import Registration

logger = logging.getLogger("reliq")

_LOOK_EVERY_S = 0.5
_MOST_NAMED = 20
# A slot that moves, or a connection that is being opened, is soon there again: no outage.
_LASTS_S = 2.0


class LostQueues:
    """Those of one session. Of whoever does its duties."""

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._look_at = 0.0
        self._lost: set[str] = set()
        # Queues of which it is otherwise than was told last, and since when.
        self._changed: dict[str, float] = {}

    def tick(self, store: Store) -> None:
        """Look whether a queue was lost, or has come back; does not wait."""
        now = monotonic()
        if not store.has_nodes or now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        queues = self._consumed()
        self._lost &= queues
        changed = {queue for queue in queues if store.is_away(queue) != (queue in self._lost)}
        self._changed = {queue: self._changed.get(queue, now) for queue in changed}
        due = [queue for queue in sorted(changed) if now - self._changed[queue] >= _LASTS_S]
        if due:
            self._tell(store, due)

    def _consumed(self) -> set[str]:
        """Return the names of what is consumed from, partitions too that could not be begun on."""
        registration = self._registration
        queues = set(registration.subscriptions.copy())
        for queue in queues & registration.layouts.copy().keys():
            queues.update(partition_names(queue, registration.layouts.get(queue, 1)))
        return queues

    def _tell(self, store: Store, queues: list[str]) -> None:
        back = [queue for queue in queues if queue in self._lost]
        lost: dict[str, list[str]] = {}
        for queue in queues:
            if queue not in self._lost:
                lost.setdefault(store.node_of(queue), []).append(queue)
        for node, names in lost.items():
            logger.warning(
                "nothing can be taken from %s: node %s does not serve them (it is away, or their "
                "slots are between two nodes); what else this process consumes goes on, and they "
                "are consumed from as soon as a node serves them; reliq doctor looks at the "
                "cluster",
                _named(names),
                node,
            )
        if back:
            logger.info("consuming from %s again: a node serves them", _named(back))
        self._lost.symmetric_difference_update(queues)


def _named(queues: list[str]) -> str:
    named = ", ".join(map(repr, queues[:_MOST_NAMED]))
    more = len(queues) - _MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named
