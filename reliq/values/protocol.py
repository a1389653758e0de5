"""The store as a type, and how its callers handle an unreachable node of a cluster.

Callers use one class and do not choose its engine. ``store/store.py`` and its parts
document the contract.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from ..errors import BrokerRefused, BrokerUnavailable, NotFound, ReliqError, again, near
from ..message.queue_names import queue_of

if TYPE_CHECKING:
    from ..store.store import RedisStore
    from .inspection import QueueStatus

    Store: TypeAlias = RedisStore


NODE_PATIENCE_S = 0.1
"""How long a caller with work at several nodes waits for one of them."""


def partly_reachable(store: Store) -> bool:
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


class Attempt:
    """Work at one node, or at several in turn: each ``with`` block is the work at one of them.

    A lost node ends only its block: it does not delay the others. Raises BrokerUnavailable if the
    broker is one server, or if all its nodes are lost.
    """

    lost: ReliqError | None = None
    """The first error of a block; None if all were done."""

    def __init__(self, store: Store, patience_s: float = inf, *, refused: bool = False) -> None:
        """Wait at most *patience_s* for a node; by default, only briefly after one was lost.

        *refused*: the broker's refusal also ends only its block.
        """
        self._store = store
        self._patience_s = patience_s
        self._shorter_s = NODE_PATIENCE_S if patience_s == inf else patience_s
        self._refused = refused

    def __enter__(self) -> Attempt:  # noqa: PYI034 - Self is not in Python 3.10
        """Begin the work at one node."""
        self._limit = self._store.patience(self._patience_s)
        self._limit.__enter__()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> bool:
        """Record the loss of the node."""
        self._limit.__exit__(None, None, None)
        if isinstance(error, BrokerUnavailable) and partly_reachable(self._store):
            self._patience_s = self._shorter_s
        elif not (self._refused and isinstance(error, BrokerRefused)):
            return False
        self.lost = self.lost or again(error)
        return True

    def raise_lost(self) -> None:
        """Raise the first error of a block."""
        if self.lost is not None:
            raise again(self.lost)
