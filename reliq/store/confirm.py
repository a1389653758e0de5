"""Confirmations: wait until published messages are on replicas or on disk.

WAIT and WAITAOF wait for the writes of **this connection**, and a retry writes nothing. Therefore
each wait follows a write of its own (docs/design.md). The server must also still know the publish
numbers of the messages: a replica that was promoted without them would answer that its own
replicas have all of its data.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from ..errors import BrokerRefused, BrokerUnavailable, NotConfirmed
from ..lua.keys import queue_keys
from ..values.limits import MOVES_KEPT_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..client.cluster.wire import ClusterWire
    from ..client.commands import Commands
    from ..client.stream import Command, Reply
    from ..client.wire import Wire
    from ..options import Confirm
    from ..values.values import Publication, Wanted

# By a part of the server's error message.
_REASONS = {
    "unknown command": 'it has no WAITAOF, which confirm="fsynced" needs: use Redis 7.2 or newer '
    'or Valkey, or confirm="replicated"',
    "appendonly": 'it has no append-only file, which confirm="fsynced" needs: '
    'set appendonly yes on the server, or use confirm="replicated"',
}
LOST = (
    "this server does not have it. The server that stored it was replaced or has lost data, and "
    "the message with it"
)
"""The reason if the server lacks the number of a message."""


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

    def confirm(self, wanted: Wanted, publications: Sequence[Publication]) -> None:
        """Wait for replicas or the disk. Raises NotConfirmed after the timeout.

        "replicated" waits for replicas, "fsynced" for the broker's disk. Both also cover
        DUPLICATEs, which an earlier try has stored over any connection.
        """
        level, replicas, timeout_ms = wanted
        fsynced = level == "fsynced"
        wait = ("WAITAOF", 1, 0, timeout_ms) if fsynced else ("WAIT", replicas, timeout_ms)
        numbers = self._numbers(publications)
        commands: list[Command] = [("HGET", *place) for place in numbers]
        # This connection's own write. PEXPIRE reaches the replicas and the file whenever the
        # key exists. It needs no memory and changes no data that is read.
        touched = dict.fromkeys(key for key, _ in numbers)
        commands += [("PEXPIRE", key, MOVES_KEPT_MS) for key in touched]
        began = monotonic()
        *stored, reply = self._call(wait, timeout_ms / 1000, "the messages are stored", commands)
        if not knows_all(numbers, stored):
            raise not_confirmed(self._wire.address, level, publications, LOST)
        answered, needed = (reply[0], 1) if fsynced else (reply, replicas)
        if answered >= needed:
            return
        got = (
            "the append-only file was not synced"
            if fsynced
            else f"{answered} of {needed} replicas answered (confirm_replicas)"
        )
        raise not_confirmed(
            *(self._wire.address, level, publications),
            f"{got} within {monotonic() - began:.3g} s (confirm_timeout {timeout_ms / 1000:g} s). "
            "The message may be stored, and lost with this server",
        )

    def _call(
        self, wait: Command, patience_s: float, stored: str, first: Sequence[Command] = ()
    ) -> list[Reply]:
        commands = [(command, None) for command in (*first, wait)]
        try:
            return self._wire.exchange(commands, patience_s=patience_s)
        except BrokerRefused as exc:
            reason = next((text for word, text in _REASONS.items() if word in str(exc)), None)
            if reason is None:
                raise
            raise BrokerRefused(f"{self._wire.address} refused: {reason}; {stored}") from exc

    def _numbers(self, publications: Sequence[Publication]) -> dict[tuple[str, str], list[int]]:
        """Return the publish numbers by their record: key and publisher."""
        numbers: dict[tuple[str, str], list[int]] = {}
        for item in publications:
            if item.number:
                key = queue_keys(self._prefix, item.queue).publishers
                numbers.setdefault((key, item.publisher), []).append(item.number)
        return numbers


class ClusterConfirmer:
    """The confirmations of one connection to a cluster: a :class:`Confirmer` for each node."""

    def __init__(self, cluster: ClusterWire, prefix: str, slot_of: Callable[[str], int]) -> None:
        """*slot_of* returns the slot of a queue."""
        self._cluster = cluster
        self._prefix = prefix
        self._slot_of = slot_of

    def require_confirm(self, level: Confirm) -> None:
        """Raise BrokerRefused if the cluster cannot confirm that a write is on disk."""
        if level == "fsynced":
            wire = self._cluster.wire_of(self._cluster.anchor_slot)
            Confirmer(wire, self._prefix).require_confirm(level)

    def confirm(self, wanted: Wanted, publications: Sequence[Publication]) -> None:
        """Wait for replicas or the disks. Raises NotConfirmed after the timeout.

        The nodes are asked one after another, but replicate and sync at the same time.
        """
        level, ends_at = wanted.level, monotonic() + wanted.timeout_ms / 1000
        by_wire: dict[Wire, list[Publication]] = {}
        for item in publications:
            try:
                wire = self._cluster.wire_of(self._slot_of(item.queue))
            except BrokerUnavailable as exc:
                raise self._not_confirmed(level, [item], f"its node was lost: {exc}") from exc
            by_wire.setdefault(wire, []).append(item)
        for wire, items in by_wire.items():
            left_ms = max(int((ends_at - monotonic()) * 1000), 1)
            try:
                left = wanted._replace(timeout_ms=left_ms)
                Confirmer(wire, self._prefix).confirm(left, items)
            except BrokerRefused as exc:
                if not self._cluster.unserved.heed(exc):
                    raise
                raise self._not_confirmed(level, items, f"its slot has moved: {exc}") from exc

    def _not_confirmed(
        self, level: Confirm, items: Sequence[Publication], reason: str
    ) -> NotConfirmed:
        return not_confirmed(
            *(self._cluster.address, level, items),
            f"{reason}. The message may be lost with the node that stored it",
        )


def knows_all(numbers: dict[tuple[str, str], list[int]], records: Sequence[Reply]) -> bool:
    """Whether each record, in the order of *numbers*, has its numbers."""
    pairs = zip(numbers.values(), records, strict=False)
    return all(_knows(record, number) for some, record in pairs for number in some)


def _knows(record: bytes | None, number: int) -> bool:
    """Whether a publisher's *record* (publish.lua) has *number*, or a higher settled one."""
    _, settled, *known = (record or b"0 0").split()
    ranges = known[0].split(b",") if known else []
    return number < int(settled) or any(
        int(first) <= number <= int(last or first)
        for first, _, last in (some.partition(b"-") for some in ranges)
    )


def not_confirmed(
    address: object, level: Confirm, publications: Sequence[Publication], reason: str
) -> NotConfirmed:
    """Return the error for *publications* that are stored, but not confirmed."""
    queues = ", ".join(repr(name) for name in dict.fromkeys(item.queue for item in publications))
    return NotConfirmed(
        f"{address}: not confirmed as {level!r} for {queues}: {reason}; publishing it again with "
        "the same properties, as Kombu's retry does, is safe and stores it once"
    )
