"""What a cluster says of itself, and what can be wrong with it: each node is asked.

What holds for one server is looked at in :mod:`..server`, at each node that has slots; here is
what only who sees all of them can tell.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ....errors import BrokerRefused, BrokerUnavailable, ReliqError, again
from ....store.inspection import BrokerInfo, Finding, Node
from ..base import StoreBase
from ..server import Server
from ..server_info import number_of, parse
from .findings import (
    judge_clocks,
    judge_open_slots,
    judge_replicas,
    judge_slots,
    look_at_replicas,
    open_slots,
)
from .nodes import PATIENCE_S

if TYPE_CHECKING:
    from ..stream import Command
    from ..wire import Wire
    from .findings import OpenSlot
    from .slots import Place
    from .wire import ClusterWire

# A slot that is being moved is open for as long as its keys take.
_STAYS_S = 1.0


class ClusterDiagnosis(StoreBase):
    """What a store tells of the nodes of its cluster."""

    @property
    def _cluster(self) -> ClusterWire:
        return self._wire  # type: ignore[return-value]

    @cached_property
    def _servers(self) -> dict[Place, tuple[Wire, Server]]:
        """Those that were asked, each with the connection over which that was."""
        return {}

    def _server_at(self, place: Place, wire: Wire) -> Server:
        asked_over, server = self._servers.get(place, (None, None))
        if server is None or asked_over is not wire:
            server = Server(wire, self._prefix)
            self._servers[place] = (wire, server)
        return server

    # -- about

    def about(self) -> BrokerInfo:
        """Return what the masters say of themselves: sums, and the shortest uptime.

        Raises BrokerUnavailable where none answers.
        """
        self._refresh()
        found: list[BrokerInfo] = []
        count = 0
        for place, wire in self._cluster.nodes.each_master():
            count += 1
            if not isinstance(wire, ReliqError):
                with suppress(BrokerUnavailable):
                    found.append(self._server_at(place, wire).about(self.broker))
        if not found:
            raise BrokerUnavailable(f"{self.broker}: none of its {count} masters answers")
        answer = "" if len(found) == count else f", {len(found)} answer"
        memory = [item.memory_bytes for item in found]
        limits = [item.memory_limit_bytes for item in found]
        clients = [item.clients for item in found]
        return BrokerInfo(
            self.broker,
            _each(item.engine for item in found),
            _each(item.version for item in found),
            f"cluster of {count} master{'' if count == 1 else 's'}{answer}",
            min((item.uptime_s for item in found if item.uptime_s is not None), default=None),
            _sum(memory),
            _sum(limits),
            _each(item.persistence for item in found),
            _sum(clients),
        )

    def nodes(self) -> list[Node]:
        """Return the nodes that have slots, and whether each answers; never raises for one."""
        with suppress(ReliqError):
            self._cluster.slots.refresh(self.options, self._cluster.name)
        sizes = self._cluster.slots.sizes
        return [
            _node(place, sizes[place], wire) for place, wire in self._cluster.nodes.each_master()
        ]

    # -- doctor

    def diagnose(self) -> list[Finding]:
        """Look at what can be wrong with the cluster, and at each of its masters."""
        self._refresh()
        found = [*judge_slots(self._cluster.slots.uncovered), *self._open_slots()]
        said: dict[Finding, list[Place]] = {}
        clocks: dict[Place, tuple[float, float]] = {}
        replicas: dict[Place, int] = {}
        lacking: set[Command] = set()
        count = 0
        for place, wire in self._cluster.nodes.each_master():
            count += 1
            try:
                if isinstance(wire, ReliqError):
                    raise again(wire)
                server = self._server_at(place, wire)
                for finding in server.diagnose(in_cluster=True):
                    said.setdefault(finding, []).append(place)
                lacking |= server.lacking
                connected, clock = server.replicas(), server.clock()
                if connected is not None:
                    replicas[place] = connected
                if clock is not None:
                    clocks[place] = clock
            except (BrokerUnavailable, BrokerRefused) as exc:
                found.append(_lost(place, exc))
        found += [_named(finding, places, count) for finding, places in said.items()]
        found += [
            *judge_replicas(replicas),
            *look_at_replicas(self._cluster, self._prefix, lacking),
        ]
        found += judge_clocks(clocks)
        return found

    def _open_slots(self) -> list[Finding]:
        """Look for slots that stay on their way; where there is one, look twice."""
        try:
            before = self._open_now()
            if not before:
                return []
            time.sleep(_STAYS_S)
            return [*judge_open_slots(before, self._open_now())]
        except BrokerRefused as exc:
            return [
                Finding(
                    "slots",
                    "info",
                    f"this user may not look whether one was left on its way: {exc}",
                    "give it the rule that `reliq acl operator --cluster` prints",
                )
            ]

    def _open_now(self) -> set[OpenSlot]:
        found: set[OpenSlot] = set()
        for _, wire in self._cluster.nodes.each_master():
            if not isinstance(wire, ReliqError):
                with suppress(BrokerUnavailable):  # said of the node
                    found |= open_slots(wire.call(("CLUSTER", "NODES")).decode())
        return found

    def _refresh(self) -> None:
        self._cluster.slots.refresh(self.options, self._cluster.name)


def _each(values: Any) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _sum(values: list[int | None]) -> int | None:
    """Return the sum; None where one of them is not known, or has no limit."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _node(place: Place, slots: int, wire: Wire | ReliqError) -> Node:
    up, memory = not isinstance(wire, BrokerUnavailable), None
    if not isinstance(wire, ReliqError):
        try:
            memory = number_of(parse(wire.ask(("INFO", "memory"), PATIENCE_S)).get("used_memory"))
        except BrokerUnavailable:
            up = False
        except ReliqError:  # it may not be asked: it is up all the same
            memory = None
    return Node(str(place), up=up, slots=slots, memory_bytes=memory)


def _named(finding: Finding, places: list[Place], count: int) -> Finding:
    """Return *finding* with the nodes that it is about."""
    everywhere = len(places) == count > 1
    who = f"all {count} masters" if everywhere else ", ".join(map(str, places))
    return Finding(finding.check, finding.severity, f"{who}: {finding.message}", finding.remedy)


def _lost(place: Place, error: ReliqError) -> Finding:
    return Finding(
        "node",
        "error",
        f"{place} has slots and cannot be asked: {error}",
        "start it again; where it is gone for good, let a replica take over "
        "(CLUSTER FAILOVER TAKEOVER at the replica)",
    )
