"""Declarations: the queues that a transport has declared, and declares again when they are lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..message.queue_arguments import is_durable

if TYPE_CHECKING:
    from ..routing.redeclare import Declared
    from ..store.protocol import Store
    from .link import Linked

logger = logging.getLogger("reliq")


class Declarations:
    """Queue -> its arguments and its settings. Of the application's threads: one step each."""

    def __init__(self, transport: Linked) -> None:
        self._transport = transport
        self.queues: Declared = {}

    def may_go_by_itself(self, queue: str) -> bool:
        """Whether *queue* may end without being deleted, as far as is known here."""
        declared = self.queues.get(queue)
        return declared is None or not is_durable(declared[1])

    def redeclare(self, queue: str, store: Store) -> bool:
        """Declare over *store* a durable queue again that the broker has lost; False: not ours."""
        declared = self.queues.get(queue)
        if declared is None or not is_durable(declared[1]):
            return False  # never ours, or one that is meant to go by itself
        logger.warning("queue %r was lost by the broker and is declared again", queue)
        store.declare_queue(queue, False, *declared)
        return True

    def declare_again(self, queue: str, store: Store) -> bool:
        """Declare and bind *queue* over *store*; False where it is not ours.

        Of whatever kind: who consumes from it comes back.
        """
        declared = self.queues.get(queue)
        if declared is None:
            return False
        store.declare_queue(queue, False, *declared)
        self._transport.link.routes.bind_again(queue, store)
        return True

    def revive(self, queue: str) -> bool:
        """Declare again a queue that went with its last consumer, us, while we were away."""
        session, store, routes = self._transport.link
        declared = session.registration.topology.revive(queue, routes, store)
        if declared is None:
            return False
        self.queues[queue] = declared
        return True

    def forget(self, queue: str) -> None:
        """Note that *queue* was deleted: it is not to be declared again by itself."""
        self.queues.pop(queue, None)
        self._transport.link.session.registration.topology.forget_queue(queue)
