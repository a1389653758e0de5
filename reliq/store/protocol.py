"""The store as a type, and how its callers handle an unreachable node of a cluster.

Callers use one class and do not choose its engine. ``engines/redis/store.py`` and its parts
document the contract.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from ..errors import BrokerRefused, BrokerUnavailable, NotFound, ReliqError, again, near
from ..message.queue_names import queue_of

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator

    from ..engines.redis.store import RedisStore
    from .inspection import QueueStatus

    Store: TypeAlias = RedisStore
    Deferred: TypeAlias = deque[Callable[[Store], None]]
    """Pending work that needs a store."""


NODE_PATIENCE_S = 0.1
"""How long a caller with work at several nodes waits for one of them."""


def goes_on(store: Store) -> bool:
    """Whether the broker has several nodes and some are reachable: only one node failed."""
    return store.has_nodes and store.alive


def status_of(store: Store, queue: str) -> QueueStatus:
    """Return the status of *queue*; raises NotFound."""
    status = store.reads.status(queue)
    if status is None:
        raise no_queue(store, queue)
    return status


def no_queue(store: Store, queue: str) -> NotFound:
    """Return an operator's error for an unknown *queue*, with similar names."""
    known: set[str] = set()
    with suppress(ReliqError):
        known.update(map(queue_of, store.queues()))
    return NotFound(f"no queue {queue!r}{near(queue, known) or '; reliq status lists all'}")


class EachNode:
    """One round over the queues of one store, some of whose nodes may be unreachable.

    An unreachable node does not delay the others, and neither does a refused step, if the caller
    wants that. The first error is raised after the last queue.
    """

    def __init__(self, store: Store, patience_s: float = inf) -> None:
        """Wait at most *patience_s* for a node; by default, only briefly after one has failed."""
        self._store = store
        self._patience_s = patience_s
        self._shorter_s = NODE_PATIENCE_S if patience_s == inf else patience_s
        self._first: ReliqError | None = None

    @contextmanager
    def turn(self, *, refused: bool = False) -> Iterator[None]:
        """Run the work of one queue; continue with the next queue if its node is unreachable.

        Raises BrokerUnavailable if the broker is one server, or if all its nodes are unreachable.
        *refused*: continue also if the broker has refused the work of this queue.
        """
        try:
            with self._store.patience(self._patience_s):
                yield
        except BrokerUnavailable as exc:
            if not goes_on(self._store):
                raise
            self._first = self._first or again(exc)
            self._patience_s = self._shorter_s
        except BrokerRefused as exc:
            if not refused:
                raise
            self._first = self._first or again(exc)

    def end(self) -> None:
        """Raise the first error of a turn that did not end the round."""
        if self._first is not None:
            raise again(self._first)
