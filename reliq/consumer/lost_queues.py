"""Lost queues: reports of consumed queues whose node is unreachable."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from ..errors import logger
from ..message.queue_names import partition_names

if TYPE_CHECKING:
    from ..values.protocol import Store
    from .registration import Registration

_CHECK_EVERY_S = 0.5
_MOST_NAMED = 20
# A moving slot or a connection in progress is usually available within this time: no outage.
_LASTS_S = 2.0


class LostQueues:
    """Logs, once each, that a consumed queue's node is unreachable and that it is back.

    Belongs to the background duties of one session.
    """

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._check_at = 0.0
        self._lost: set[str] = set()
        # Queues whose state differs from the last report, each with the time of the change.
        self._changed: dict[str, float] = {}

    def tick(self, store: Store) -> None:
        """Check for queues that were lost or have returned; does not wait."""
        now = monotonic()
        if not store.has_nodes or now < self._check_at:
            return
        self._check_at = now + _CHECK_EVERY_S
        registration = self._registration
        queues = set(registration.subscriptions.copy())
        # Include partitions whose consumption could not begin.
        for queue in queues & registration.layouts.copy().keys():
            queues.update(partition_names(queue, registration.layouts.get(queue, 1)))
        self._lost &= queues
        changed = {
            queue for queue in queues if store.is_unreachable(queue) != (queue in self._lost)
        }
        self._changed = {queue: self._changed.get(queue, now) for queue in changed}
        due = [queue for queue in sorted(changed) if now - self._changed[queue] >= _LASTS_S]
        if due:
            self._report(store, due)

    def _report(self, store: Store, queues: list[str]) -> None:
        back = [queue for queue in queues if queue in self._lost]
        lost: dict[str, list[str]] = {}
        for queue in queues:
            if queue not in self._lost:
                lost.setdefault(store.node_of(queue), []).append(queue)
        for node, names in lost.items():
            logger.warning(
                "cannot consume from %s: node %s does not serve them (it is unreachable, or "
                "their slots are between two nodes); other queues are not affected; consumption "
                "resumes when a node serves them; run reliq doctor to check the cluster",
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
