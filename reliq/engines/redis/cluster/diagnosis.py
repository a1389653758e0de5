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
from ..server import FARTHEST_S, Server
from ..server_info import number_of, parse
from .nodes import PATIENCE_S
from .open_slots import judge_open_slots, open_slots
from .replica_users import look_at_replicas
from .slots import SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..stream import Command
    from ..wire import Wire
    from .open_slots import OpenSlot
    from .slots import Place
    from .wire import ClusterWire

# confirm="replicated" waits for one; with another, it still can when one is lost.
_REPLICAS_WANTED = 2
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
        for place, wire in self._cluster.each_master():
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
        return [_node(place, sizes[place], wire) for place, wire in self._cluster.each_master()]

    # -- doctor

    def diagnose(self) -> list[Finding]:
        """Look at what can be wrong with the cluster, and at each of its masters."""
        self._refresh()
        found = [*_slots(self._cluster.slots.uncovered), *self._open_slots()]
        said: dict[Finding, list[Place]] = {}
        clocks: dict[Place, tuple[float, float]] = {}
        replicas: dict[Place, int] = {}
        lacking: set[Command] = set()
        count = 0
        for place, wire in self._cluster.each_master():
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
        found += [*_replicas(replicas), *look_at_replicas(self._cluster, self._prefix, lacking)]
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
        for _, wire in self._cluster.each_master():
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


def _slots(uncovered: int) -> Iterator[Finding]:
    if uncovered:
        yield Finding(
            "slots",
            "error",
            f"{uncovered} of {SLOTS} slots have no node: queues in them cannot be used, and where "
            "cluster-require-full-coverage is yes (the default) no queue can",
            "redis-cli --cluster fix HOST:PORT, with any of the nodes",
        )
    else:
        yield Finding("slots", "ok", f"{SLOTS} of {SLOTS} have a node")


def _replicas(counts: Mapping[Place, int]) -> Iterator[Finding]:
    wanted = f'confirm="replicated" wants {_REPLICAS_WANTED} for each master'
    bare = sorted(place for place, count in counts.items() if not count)
    if bare:
        yield Finding(
            "replicas",
            "warning",
            f"{', '.join(map(str, bare))}: no replica, so that its queues are gone while the node "
            "is",
            f"redis-cli --cluster add-node NEW:PORT HOST:PORT --cluster-slave; {wanted}, "
            "so that it goes on when one is lost",
        )
    elif counts:
        fewest = min(counts.values())
        note = f"; {wanted}" if fewest < _REPLICAS_WANTED else ""
        yield Finding("replicas", "ok", f"at least {fewest} for each master{note}")


def judge_clocks(clocks: Mapping[Place, tuple[float, float]]) -> Iterator[Finding]:
    """Compare clocks: for each node how far it is ahead of this machine, and what asking took."""
    if not clocks:
        return
    first, last = (choose(clocks, key=lambda p: clocks[p][0]) for choose in (max, min))
    (ahead_s, one_s), (behind_s, other_s) = clocks[first], clocks[last]
    apart_s = ahead_s - behind_s
    if apart_s - (one_s + other_s) / 2 > FARTHEST_S:
        yield Finding(
            "clock",
            "warning",
            f"the clock of {first} is {apart_s:.1f} s ahead of that of {last}: delays and TTLs "
            "are by the clock of the node that has the queue",
            "let all nodes keep their time by NTP",
        )
        return
    farthest = max(clocks, key=lambda p: abs(clocks[p][0]))
    off_s, took_s = clocks[farthest]
    if abs(off_s) - took_s / 2 > FARTHEST_S:
        yield Finding(
            "clock",
            "warning",
            f"the clock of {farthest} is {abs(off_s):.1f} s "
            f"{'ahead of' if off_s > 0 else 'behind'} this machine's: ages and an eta are wrong by "
            "as much",
            "let the nodes and this machine keep their time by NTP",
        )
        return
    slowest_ms = max(took for _, took in clocks.values()) * 1000
    yield Finding(
        "clock",
        "ok",
        f"{len(clocks)} nodes within {abs(off_s):.2f} s; an answer took {slowest_ms:.1f} ms",
    )
