"""Consumers that died: found early, and what they leave behind.

A killed process's sockets close at once. The pass over a queue looks up the
connections of its other consumers; one that stays missing for ``orphan_grace``
has its leases ended now, each fenced by its token, instead of when they run out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from .errors import BrokerRefused, ReliqError
from .routing import Routes
from .store import Lost, Store

if TYPE_CHECKING:
    from .session import Session

logger = logging.getLogger("reliq")

_Later = deque[Callable[[Store], None]]


class Orphans:
    """What one session knows of consumers that may be dead."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._half_way: dict[str, tuple[float, list[str]]] = {}
        # Since when, and the connection that was gone then.
        self._missing: dict[tuple[str, str], tuple[float, str]] = {}

    def first_look(self, queue: str, store: Store) -> None:
        """Look, on beginning to consume, who else does: a dead one may have left messages."""
        self._look_now_and_half_way(queue, store.consumers_of(queue), store)

    def suspect(self, queue: str, consumers: Sequence[str], later: _Later) -> None:
        """Look at the other *consumers* of *queue*, who hold messages, as soon as possible."""
        later.append(partial(self._look_now_and_half_way, queue, consumers))

    def _look_now_and_half_way(self, queue: str, consumers: Sequence[str], store: Store) -> None:
        others = sorted({name for name in consumers if name != self._session.id})
        if others:
            # Looked at twice a pass: with the defaults a death is then dealt with in
            # less than ten seconds.
            half_way = monotonic() + self._session.options.restore_interval / 2
            self._half_way[queue] = (half_way, others)
            self._look(queue, others, store)

    def tick(self, later: _Later) -> None:
        """Ask for a look at who is due; it is done when the broker is known to answer."""
        now = monotonic()
        due: dict[str, set[str]] = {}
        for queue, (half_way, others) in list(self._half_way.items()):
            if now >= half_way:
                del self._half_way[queue]
                due.setdefault(queue, set()).update(others)
        for (queue, name), (since, _) in list(self._missing.items()):
            if now - since >= self._session.options.orphan_grace:
                due.setdefault(queue, set()).add(name)
        for queue, names in due.items():
            later.append(partial(self._look, queue, sorted(names)))

    def _look(self, queue: str, names: Sequence[str], store: Store) -> None:
        now = monotonic()
        for name, liveness in store.liveness(names).items():
            key = (queue, name)
            if liveness is None:
                # Nothing is known of it: it cancelled its consumers and still works,
                # or could not say that it lives. Its leases decide; only a name
                # without any is taken off the queue.
                self._missing.pop(key, None)
                if not store.leases_of(queue, name + "/"):
                    self._remove(store, queue, name)
                continue
            if liveness.connected:
                self._missing.pop(key, None)
                continue
            since, client_id = self._missing.get(key, (now, liveness.client_id))
            if client_id != liveness.client_id:
                since = now  # it was back meanwhile, and went again: a moment, twice
            self._missing[key] = since, liveness.client_id
            if now - since >= self._session.options.orphan_grace:
                del self._missing[key]
                self._end(store, queue, name)
                # The last of its queues was looked at: nothing is left that it could explain.
                if not any(name in store.consumers_of(q) for q in liveness.queues if q != queue):
                    store.forget_consumer(name)

    def _end(self, store: Store, queue: str, name: str) -> None:
        """End the leases of a dead consumer: the next pass returns the messages, counted."""
        leases = store.leases_of(queue, name + "/")
        if leases:
            store.post_renew(queue, 0, leases, _refused)
        self._remove(store, queue, name)
        store.settle()
        self._session.keeper.hurry(queue, store)
        if leases:
            logger.warning(
                "consumer %s is gone: the leases of its %d messages in %r were ended",
                name,
                len(leases),
                queue,
            )

    @staticmethod
    def _remove(store: Store, queue: str, name: str) -> None:
        if not store.attach(queue, name, 0):
            Routes(store).forget_queue(queue)

    def expire_queue(self, queue: str, store: Store) -> None:
        """Delete *queue* if its ``x-expires`` has passed with no living consumer."""
        names = store.consumers_of(queue)
        known = store.liveness(names) if names else {}
        for name in names:
            if known[name] is None:  # it stopped its heartbeat long ago
                self._remove(store, queue, name)
        deleted = store.delete_queue(queue, if_idle=True)
        if deleted.outcome == "deleted":
            logger.info("queue %r was unused for its x-expires and is deleted", queue)
        if deleted.outcome in {"deleted", "missing"}:
            Routes(store).forget_queue(queue)


def _refused(result: Lost | ReliqError) -> None:
    if isinstance(result, BrokerRefused):
        logger.error("the leases of a dead consumer could not be ended: %s", result)
