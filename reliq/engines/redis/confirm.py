"""Confirmations: wait until published messages are on replicas or on disk.

WAIT and WAITAOF wait for the writes of **this connection**, and a retry writes nothing. Therefore
each wait follows a write of its own (docs/design.md). Over a cluster, a node confirms only the
messages that it stored itself, over connections that have not broken since. Otherwise, a replica
promoted without the message would answer that its own replicas have all of its data.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING

from ...errors import BrokerRefused, NotConfirmed
from ...store.limits import MOVES_KEPT_MS
from .keys import queue_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...options import Confirm
    from ...store.values import Publication
    from .cluster.wire import ClusterWire
    from .commands import Commands
    from .stream import Command, Reply
    from .wire import Wire

# By a part of the server's error message.
_REASONS = {
    "unknown command": 'it has no WAITAOF, which confirm="fsynced" needs: use Redis 7.2 or newer '
    'or Valkey, or confirm="replicated"',
    "appendonly": 'it has no append-only file, which confirm="fsynced" needs: '
    'set appendonly yes on the server, or use confirm="replicated"',
}

# Unconfirmed messages that a thread remembers; with confirmations on there are only a few.
_MOST_NOTED = 4096


class Confirmer:
    """The confirmations of one connection."""

    def __init__(self, wire: Commands, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix
        self._able_epoch = -1

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused if the server cannot confirm that a write is on disk.

        Checked before anything is stored. The result is kept while the connection is open.
        """
        if level != "fsynced":
            return
        self._wire.connect()
        if self._able_epoch == self._wire.dials:
            return
        self._call(("WAITAOF", 1, 0, 1), 0.0, "nothing was stored")
        self._able_epoch = self._wire.dials

    def confirm(
        self,
        level: Confirm,
        replicas: int,
        timeout_ms: int,
        publications: Sequence[Publication],
    ) -> None:
        """Wait for replicas or the disk. Raises NotConfirmed after *timeout_ms*.

        "replicated" waits for *replicas* replicas, "fsynced" for the broker's disk. Both also
        cover DUPLICATEs, which an earlier try has stored over any connection.
        """
        if level not in {"replicated", "fsynced"}:
            return
        fsynced = level == "fsynced"
        wait = ("WAITAOF", 1, 0, timeout_ms) if fsynced else ("WAIT", replicas, timeout_ms)
        # This connection's own write. PEXPIRE reaches the replicas and the file whenever the
        # key exists. It needs no memory and changes no data that is read.
        touched = dict.fromkeys(
            queue_keys(self._prefix, item.queue).publishers for item in publications if item.number
        )
        touches: list[Command] = [("PEXPIRE", key, MOVES_KEPT_MS) for key in touched]
        began = monotonic()
        reply = self._call(wait, timeout_ms / 1000, "the messages are stored", touches)
        answered, wanted = (reply[0], 1) if fsynced else (reply, replicas)
        if answered >= wanted:
            return
        got = (
            "the append-only file was not synced"
            if fsynced
            else f"{answered} of {wanted} replicas answered (confirm_replicas)"
        )
        queues = ", ".join(repr(name) for name in dict.fromkeys(i.queue for i in publications))
        raise NotConfirmed(
            f"{self._wire.address}: not confirmed as {level!r} for {queues}: {got} within "
            f"{monotonic() - began:.3g} s (confirm_timeout {timeout_ms / 1000:g} s). The message "
            "may be stored, and lost with this server; publishing it again with the same "
            "properties, as Kombu's retry does, is safe and stores it once"
        )

    def _call(
        self, wait: Command, patience_s: float, stored: str, touches: Sequence[Command] = ()
    ) -> Reply:
        commands = [(command, None) for command in (*touches, wait)]
        try:
            *_, reply = self._wire.exchange(commands, patience_s=patience_s)
        except BrokerRefused as exc:
            reason = next((text for word, text in _REASONS.items() if word in str(exc)), None)
            if reason is None:
                raise
            raise BrokerRefused(f"{self._wire.address} refused: {reason}; {stored}") from exc
        return reply


class _Noted(threading.local):
    """The messages that a thread has published, and the connection that stored each."""

    def __init__(self) -> None:
        self.by_tag: dict[str, tuple[Wire | None, int]] = {}


class ClusterConfirmer:
    """The confirmations of one connection to a cluster: a :class:`Confirmer` for each node."""

    def __init__(self, cluster: ClusterWire, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._noted = _Noted()

    def note(self, publications: Sequence[Publication], wire: Wire | None) -> None:
        """Record the connection over which a node confirmed storing *publications*."""
        noted = self._noted.by_tag
        if len(noted) > _MOST_NOTED:
            noted.clear()
        for item in publications:
            noted[item.tag] = wire, 0 if wire is None else wire.calls.broken

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused if the cluster cannot confirm that a write is on disk."""
        if level == "fsynced":
            wire = self._cluster.wire_of(self._cluster.anchor_slot)
            Confirmer(wire, self._prefix).require_confirm(level)

    def confirm(
        self,
        level: Confirm,
        replicas: int,
        timeout_ms: int,
        publications: Sequence[Publication],
    ) -> None:
        """Wait for replicas or the disks. Raises NotConfirmed after *timeout_ms*.

        The nodes are asked one after another, but replicate and sync at the same time.
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
            if wire is not None and wire.alive:
                try:
                    Confirmer(wire, self._prefix).confirm(level, replicas, left_ms, items)
                except BrokerRefused as exc:
                    if not self._cluster.unserved.heed(exc):
                        raise
                else:
                    if wire.alive and wire.calls.broken == broken:
                        continue  # the same server throughout
            queues = ", ".join(repr(name) for name in dict.fromkeys(item.queue for item in items))
            raise NotConfirmed(
                f"{self._cluster.address}: not confirmed as {level!r} for {queues}: the node that "
                "stored it was lost, or its slot has moved. The message may be lost with the node; "
                "publishing it again with the same properties, as Kombu's retry does, is safe and "
                "stores it once"
            )
