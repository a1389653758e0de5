"""EachNode: what is to be done for several queues, one after the other.

A queue whose node is away holds up no other; that it is away is raised when all had their turn.
"""

from __future__ import annotations

from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

from ..errors import BrokerUnavailable, again
from ..store.protocol import goes_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..store.protocol import Store

NODE_PATIENCE_S = 0.1
"""So long who has work at several nodes waits for one of them."""


class EachNode:
    """One round over queues of one store."""

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
