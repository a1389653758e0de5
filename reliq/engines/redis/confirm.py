"""Confirming: waiting until what was published is on replicas, or on disk.

WAIT and WAITAOF wait for what **this connection** has written, and a retry writes nothing. So each
wait follows a write of its own (docs/design.md). Over a cluster each node is asked about what it
has stored, while the connections to it have not broken since it said so: a replica that was
promoted before it had the message would answer that all of its own replicas have what it has.
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

# By a word of the server's error.
_REASONS = {
    "unknown command": 'it has no WAITAOF, which confirm="fsynced" needs: use Redis 7.2 or newer '
    'or Valkey, or confirm="replicated"',
    "appendonly": 'it keeps no append-only file, without which confirm="fsynced" means nothing: '
    'set appendonly yes on the server, or use confirm="replicated"',
}

# What a thread has published and not had confirmed: of one that has it confirmed, a few.
_MOST_NOTED = 4096


class Confirmer:
    """The confirmations of one connection."""

    def __init__(self, wire: Commands, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix
        self._able_epoch = -1

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused where the server cannot say that a write is on disk.

        Asked before anything is stored; what was learned is kept while the connection lives.
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
        """Wait for replicas or the disk; raises NotConfirmed after *timeout_ms*.

        "replicated": on so many replicas; "fsynced": on the broker's disk. It holds for DUPLICATEs
        too: what an earlier try has stored, over whatever connection, is waited for.
        """
        if level not in {"replicated", "fsynced"}:
            return
        fsynced = level == "fsynced"
        wait = ("WAITAOF", 1, 0, timeout_ms) if fsynced else ("WAIT", replicas, timeout_ms)
        # The write of our own. PEXPIRE goes to replicas and into the file whenever
        # the key exists, needs no memory, and changes nothing that anybody reads.
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
    """What a thread has published: over which connection it was stored."""

    def __init__(self) -> None:
        self.by_tag: dict[str, tuple[Wire | None, int]] = {}


class ClusterConfirmer:
    """The confirmations of one connection to a cluster: a :class:`Confirmer` for each node."""

    def __init__(self, cluster: ClusterWire, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
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
            Confirmer(wire, self._prefix).require_confirm(level)

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
            if wire is not None and wire.alive:
                try:
                    Confirmer(wire, self._prefix).confirm(level, replicas, left_ms, items)
                except BrokerRefused as exc:
                    if not self._cluster.unserved.heed(exc):
                        raise
                else:
                    if wire.alive and wire.calls.broken == broken:
                        continue  # it was the same server all the time
            queues = ", ".join(repr(name) for name in dict.fromkeys(item.queue for item in items))
            raise NotConfirmed(
                f"{self._cluster.address}: not confirmed as {level!r} for {queues}: the node that "
                "has stored it was lost, or its slot has moved. The message may be lost with it; "
                "publishing it again with the same properties, as Kombu's retry does, is safe and "
                "stores it once"
            )
