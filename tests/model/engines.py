"""Which brokers there are for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model import brokers, embedded

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.model.brokers import Broker

BROKERS = ("fakeredis", "redis", "sqlite")


def running(name: str) -> AbstractContextManager[Broker]:
    """Run the broker of that name."""
    return embedded.running_sqlite() if name == "sqlite" else brokers.running(name)
