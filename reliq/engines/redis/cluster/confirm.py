"""Confirming over a cluster: each node is asked about what it has stored.

While the connections to it have not broken since it said so. A server that was started anew, or
another node that has the slot by now, says nothing of it: a replica that was promoted before it had
the message would answer that all of its own replicas have what it has.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING

from ....errors import BrokerRefused, NotConfirmed
from ..confirm import Confirmer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....options import Confirm
    from ....store.values import Publication
    from ..wire import Wire
    from .wire import ClusterWire

# What a thread has published and not had confirmed: of one that has it confirmed, a few.
_MOST_NOTED = 4096


class _Noted(threading.local):
    """What a thread has published: over which connection it was stored."""

    def __init__(self) -> None:
        self.by_tag: dict[str, tuple[Wire | None, int]] = {}


class ClusterConfirmer:
    """The confirmations of one connection to a cluster: a :class:`Confirmer` for each node."""

    def __init__(self, cluster: ClusterWire, prefix: str, kept_ms: int) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._kept_ms = kept_ms
        self._noted = _Noted()

    def note(self, publications: Sequence[Publication], wire: Wire | None) -> None:
        """Note over which connection a node has said that it has *publications*."""
        noted = self._noted.by_tag
        if len(noted) > _MOST_NOTED:
            noted.clear()
        for item in publications:
            noted[item.tag] = wire, 0 if wire is None else wire.calls.broken

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused where the cluster cannot say that a write is on disk."""
        if level == "fsynced":
            wire = self._cluster.wire_of(self._cluster.anchor_slot)
            Confirmer(wire, self._prefix, self._kept_ms).require_confirm(level)

    def confirm(
        self,
        level: Confirm,
        replicas: int,
        timeout_ms: int,
        publications: Sequence[Publication],
    ) -> None:
        """Wait for replicas or the disks; raises NotConfirmed after *timeout_ms*.

        The nodes are asked one after the other: what they wait for, they wait for together.
        """
        if level not in {"replicated", "fsynced"}:
            return
        ends_at = monotonic() + timeout_ms / 1000
        noted = self._noted.by_tag
        by_wire: dict[tuple[Wire | None, int], list[Publication]] = {}
        for item in publications:
            by_wire.setdefault(noted.pop(item.tag, (None, 0)), []).append(item)
        for (wire, broken), items in by_wire.items():
            left_ms = max(int((ends_at - monotonic()) * 1000), 1)
            self._confirm_over(wire, broken, level, replicas, left_ms, items)

    def _confirm_over(
        self,
        wire: Wire | None,
        broken: int,
        level: Confirm,
        replicas: int,
        timeout_ms: int,
        items: Sequence[Publication],
    ) -> None:
        if wire is not None and wire.alive:
            try:
                Confirmer(wire, self._prefix, self._kept_ms).confirm(
                    level, replicas, timeout_ms, items
                )
            except BrokerRefused as exc:
                if not self._cluster.unserved.heed(exc):
                    raise
            else:
                if wire.alive and wire.calls.broken == broken:
                    return  # it was the same server all the time
        queues = ", ".join(repr(name) for name in dict.fromkeys(item.queue for item in items))
        raise NotConfirmed(
            f"{self._cluster.address}: not confirmed as {level!r} for {queues}: the node that has "
            "stored it was lost, or its slot has moved. The message may be lost with it; "
            "publishing it again with the same properties, as Kombu's retry does, is safe and "
            "stores it once"
        )
