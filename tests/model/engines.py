"""Which brokers there are for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model import brokers

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.model.brokers import Broker

BROKERS = ("fakeredis", "redis", "cluster")


def running(name: str) -> AbstractContextManager[Broker]:
    """Run the broker of that name."""
    return brokers.running_cluster() if name == "cluster" else brokers.running(name)
