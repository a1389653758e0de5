"""Brokers of several nodes, as whoever uses a store meets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .protocol import Store


def goes_on(store: Store) -> bool:
    """Whether the broker is several nodes and not all are lost: what failed was one of them."""
    return store.has_nodes and store.alive
