"""The store as the type of those that use one: one class, whose engine they do not choose.

Its contract stands where it is kept: in ``engines/redis/store.py`` and the parts of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..errors import NotFound

if TYPE_CHECKING:
    from ..engines.redis.store import RedisStore
    from .inspection import QueueStatus

    Store: TypeAlias = RedisStore


def goes_on(store: Store) -> bool:
    """Whether the broker is several nodes and not all are lost: what failed was one of them."""
    return store.has_nodes and store.alive


def status_of(store: Store, queue: str) -> QueueStatus:
    """Return the status of *queue*; raises NotFound."""
    status = store.reads.status(queue)
    if status is None:
        raise NotFound(f"no queue {queue!r}")
    return status
