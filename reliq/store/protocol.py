"""The store as a type, and what its users do where one of several nodes is away.

One class, whose engine they do not choose. Its contract stands in ``engines/redis/store.py`` and
the parts of it.
"""

from __future__ import annotations

from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from ..errors import BrokerUnavailable, NotFound, again

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator

    from ..engines.redis.store import RedisStore
    from .inspection import QueueStatus

    Store: TypeAlias = RedisStore
    Deferred: TypeAlias = deque[Callable[[Store], None]]
    """Work over a store, for the next opportunity."""


NODE_PATIENCE_S = 0.1
"""So long who has work at several nodes waits for one of them."""


def goes_on(store: Store) -> bool:
    """Whether the broker is several nodes and not all are lost: what failed was one of them."""
    return store.has_nodes and store.alive


def status_of(store: Store, queue: str) -> QueueStatus:
    """Return the status of *queue*; raises NotFound."""
    status = store.reads.status(queue)
    if status is None:
        raise NotFound(f"no queue {queue!r}")
    return status


class EachNode:
    """One round over queues of one store, whose nodes may be away.

    A node that is away holds up no other; its error is raised when all queues had their turn.
    """

    def __init__(self, store: Store, patience_s: float = inf) -> None:
        """Wait so long for a node; by default until one is away, then for each only a moment."""
        self._store = store
        self._patience_s = patience_s
        self._shorter_s = NODE_PATIENCE_S if patience_s == inf else patience_s
        self._first: BrokerUnavailable | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Do what is to be done for one queue, and go on with the next one.

        Raises BrokerUnavailable where the broker is one server, or all of its nodes are lost.
        """
        try:
            with self._store.patience(self._patience_s):
                yield
        except BrokerUnavailable as exc:
            if not goes_on(self._store):
                raise
            self._first = self._first or again(exc)
            self._patience_s = self._shorter_s

    def end(self) -> None:
        """Raise BrokerUnavailable if a node was away."""
        if self._first is not None:
            raise again(self._first)
