"""Which brokers there are for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model import brokers, embedded

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.model.brokers import Broker

BROKERS = ("fakeredis", "redis", "cluster", "sqlite")


def running(name: str) -> AbstractContextManager[Broker]:
    """Run the broker of that name."""
    own = {"sqlite": embedded.running_sqlite, "cluster": brokers.running_cluster}
    return own[name]() if name in own else brokers.running(name)
