"""Reads over a cluster: queues at reachable nodes can be read while other nodes are lost.

A query for one queue waits for its node until ``socket_timeout``. A query for all queues omits
each node that is silent for a second, and reports its queues. :mod:`...doctor.server` checks each
node that has slots.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...client.cluster.nodes import PATIENCE_S
from ...client.cluster.requests import COVER, for_node
from ...client.cluster.slots import slot_of
from ...doctor.cluster_findings import (
    examine_replicas,
    judge_clocks,
    judge_open_slots,
    judge_replicas,
    judge_slots,
    open_slots,
)
from ...doctor.server import Server
from ...doctor.server_info import number_of, parse
from ...errors import BrokerRefused, BrokerUnavailable, ReliqError, again
from ...lua import keys
from ...values.inspection import BrokerInfo, Finding, Node, Partial, Untold
from ..base import text_of, texts
from ..batches import RedisBatches
from ..reads import RedisReads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...client.cluster.slots import Place
    from ...client.cluster.wire import ClusterWire
    from ...client.stream import Command, Reply
    from ...client.wire import Wire
    from ...doctor.cluster_findings import OpenSlot
    from ...values.inspection import Consumer, Measure

# The patience for a slot that is moving; a slot left between two nodes never answers.
SLOT_PATIENCE_S = 2.0
# The patience for a slot that was not served at the last query.
_STUCK_PATIENCE_S = 0.1
# The maximum duration of SCAN: nodes may hold millions of keys of other applications.
_SCANNED_S = 5.0
# The pause between two checks of open slots; a slot is open only while its keys move.
_STAYS_S = 1.0


def answering(cluster: ClusterWire) -> tuple[list[tuple[Place, Wire]], dict[Place | None, str]]:
    """Return the nodes that answer within a second, and the errors of the others.

    The error of None is that of slots without a node. Raises BrokerUnavailable if no node answers.
    """
    cluster.slots.refresh(cluster.options, cluster.name)
    there: list[tuple[Place, Wire]] = []
    lost: dict[Place | None, str] = {}
    for place, wire, reply in cluster.nodes.ask_each("PING"):
        if wire is None or isinstance(reply, BrokerUnavailable):
            replica = cluster.slots.has_replica(place)
            lost[place] = f"{str(reply).removesuffix('.')}; {for_node(place, replica=replica)}"
        else:
            there.append((place, wire))
    if not there:
        raise BrokerUnavailable(f"{cluster.address}: no node answers: {'; '.join(lost.values())}")
    lost[None] = f"no node has its slot: {COVER}"
    return there, lost


class ClusterReads(RedisReads):
    """See :class:`..reads.RedisReads`; reads from the nodes that answer."""

    def __init__(self, cluster: ClusterWire, prefix: str) -> None:
        super().__init__(cluster, prefix)
        self._cluster = cluster
        # The last list of all queues, for the case that the list cannot be read.
        self._listed: set[str] = set()
        # The slots that were not served at the last query.
        self._stuck_slots: set[int] = set()

    # -- queues

    def measure_all(self) -> Partial[Measure]:
        """Return the measures of the queues that can be read now; the others are unreachable."""
        cluster = self._cluster
        there, lost = answering(self._cluster)
        names, unlisted = self._names(lost, there)
        missing: dict[Place | None, list[str]] = defaultdict(list)
        served: list[str] = []
        for name in names:
            owner = cluster.slots.place_of(self._slot(name))
            (missing[owner] if owner in lost else served).append(name)
        measures, stuck = self._served(served)
        if not missing[None]:
            del lost[None]
        measures.unreachable = [
            Untold(str(place or ""), tuple(missing[place]), why) for place, why in lost.items()
        ]
        measures.unreachable += [*stuck, *unlisted]
        measures.complete = not unlisted
        return measures

    def _names(
        self, lost: dict[Place | None, str], there: Iterable[tuple[Place, Wire]]
    ) -> tuple[list[str], list[Untold]]:
        """Return the names of all queues, and a report if the list may be incomplete."""
        anchor = self._cluster.slots.place_of(self._cluster.anchor_slot)
        why = lost.get(anchor)
        if why is None:
            try:
                with self._cluster.calls.patience(SLOT_PATIENCE_S):
                    listed = self._cluster.call(("ZRANGE", self._shared.queues, 0, -1))
            except BrokerUnavailable as exc:
                why = str(exc)
            else:
                self._listed = set(texts(listed))
                return sorted(self._listed), []
        # Exporters, which query regularly, have no right to scan.
        names = self._listed or self._scanned(there)
        note = f"the list of all queues cannot be read, so there may be more queues: {why}"
        return sorted(names), [Untold(str(anchor or ""), (), note)]

    def _scanned(self, there: Iterable[tuple[Place, Wire]]) -> set[str]:
        """Return the queues found among the keys of these nodes; raises BrokerRefused."""
        pattern = keys.metas(self._prefix)
        queues: set[str] = set()
        until = time.monotonic() + _SCANNED_S
        for _, wire in there:
            cursor = b""
            with suppress(BrokerUnavailable):  # the node was lost meanwhile
                while cursor != b"0" and time.monotonic() < until:
                    command = ("SCAN", cursor or b"0", "MATCH", pattern, "COUNT", 1000)
                    cursor, page = wire.call(command)
                    queues.update(keys.queue_of_meta(text_of(key), self._prefix) for key in page)
        return queues

    def _served(self, names: list[str]) -> tuple[Partial[Measure], list[Untold]]:
        """Return the measures of queues, and the queues whose slot no node serves now."""
        replies: dict[str, Reply] = {}
        for stuck, patience_s in ((False, SLOT_PATIENCE_S), (True, _STUCK_PATIENCE_S)):
            some = [name for name in names if (self._slot(name) in self._stuck_slots) is stuck]
            with self._cluster.calls.patience(patience_s):
                requests = self._cluster.tried([self._measure_command(name) for name in some])
            replies.update(zip(some, (request.reply for request in requests), strict=True))
        untold: dict[int, Untold] = {}
        for name in names:
            if isinstance(replies[name], BrokerUnavailable):
                slot = self._slot(name)
                where = str(self._cluster.slots.place_of(slot) or "")
                others = untold[slot].queues if slot in untold else ()
                untold[slot] = Untold(where, (*others, name), str(replies.pop(name)))
        self._stuck_slots = set(untold)
        there = [name for name in names if name in replies]
        return self._measures(there, [replies[name] for name in there]), list(untold.values())

    def _slot(self, queue: str) -> int:
        return slot_of(self._keys(queue).meta)

    def consumers(self) -> list[Consumer]:
        """Return every consumer whose record has not expired, by id.

        Raises BrokerUnavailable unless the node of the register answers within a second.
        """
        try:
            with self._cluster.calls.patience(PATIENCE_S):
                return super().consumers()
        except BrokerUnavailable as exc:
            anchor = self._cluster.slots.place_of(self._cluster.anchor_slot)
            raise BrokerUnavailable(
                f"{self.broker}: consumers are registered at {anchor}, which is unreachable: {exc}"
            ) from exc

    # -- the nodes

    def about(self) -> BrokerInfo:
        """Return sums over the masters, and the shortest uptime; raises BrokerUnavailable."""
        self._refresh()
        servers: list[BrokerInfo] = []
        count = 0
        for _, wire in self._cluster.nodes.each_master():
            count += 1
            if not isinstance(wire, ReliqError):
                with suppress(BrokerUnavailable):
                    servers.append(Server(wire, self._prefix).about(self.broker))
        if not servers:
            raise BrokerUnavailable(f"{self.broker}: none of its {count} masters answers")
        answer = "" if len(servers) == count else f", {len(servers)} answer"
        return BrokerInfo(
            self.broker,
            _each(item.engine for item in servers),
            _each(item.version for item in servers),
            f"cluster of {count} master{'' if count == 1 else 's'}{answer}",
            min((item.uptime_s for item in servers if item.uptime_s is not None), default=None),
            _sum([item.memory_bytes for item in servers]),
            _sum([item.memory_limit_bytes for item in servers]),
            _each(item.persistence for item in servers),
            _sum([item.clients for item in servers]),
        )

    def nodes(self) -> list[Node]:
        """Return the nodes with slots, and whether each answers; never raises for a lost node."""
        with suppress(ReliqError):
            self._refresh()
        sizes = self._cluster.slots.sizes
        return [
            _node(place, sizes[place], wire) for place, wire in self._cluster.nodes.each_master()
        ]

    # -- doctor

    def diagnose(self) -> list[Finding]:
        """Check the cluster and each of its masters."""
        self._refresh()
        findings = [*judge_slots(self._cluster.slots.uncovered), *self._open_slots()]
        by_finding: dict[Finding, list[Place]] = {}
        clocks: dict[Place, tuple[float, float]] = {}
        replicas: dict[Place, int] = {}
        lacking: set[Command] = set()
        count = 0
        for place, wire in self._cluster.nodes.each_master():
            count += 1
            try:
                if isinstance(wire, ReliqError):
                    raise again(wire)
                server = Server(wire, self._prefix)
                for finding in server.diagnose(in_cluster=True):
                    by_finding.setdefault(finding, []).append(place)
                lacking |= server.lacking
                connected, clock = server.replicas(), server.clock()
                if connected is not None:
                    replicas[place] = connected
                if clock is not None:
                    clocks[place] = clock
            except (BrokerUnavailable, BrokerRefused) as exc:
                findings.append(_lost(place, exc))
        findings += [_named(finding, places, count) for finding, places in by_finding.items()]
        findings += judge_replicas(replicas)
        findings += examine_replicas(self._cluster, self._prefix, lacking)
        findings += judge_clocks(clocks)
        return findings

    def _open_slots(self) -> list[Finding]:
        """Check for slots that stay open; checks a second time if a slot is open."""
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
                    f"this user may not check for interrupted moves of slots: {exc}",
                    "give the user the rule that `reliq acl operator --cluster` prints",
                )
            ]

    def _open_now(self) -> set[OpenSlot]:
        slots: set[OpenSlot] = set()
        for _, wire in self._cluster.nodes.each_master():
            if not isinstance(wire, ReliqError):
                with suppress(BrokerUnavailable):  # the finding of the node reports it
                    slots |= open_slots(wire.call(("CLUSTER", "NODES")).decode())
        return slots

    def _refresh(self) -> None:
        self._cluster.slots.refresh(self._cluster.options, self._cluster.name)


class ClusterBatches(RedisBatches):
    """See :class:`..batches.RedisBatches`."""

    def __init__(self, cluster: ClusterWire, prefix: str) -> None:
        super().__init__(cluster, prefix)
        self._cluster = cluster

    def _records(self, batches: Sequence[str], names: Sequence[str]) -> list[Reply]:
        """Return a reply for each batch; an error, without waiting, if its node does not answer."""
        _, lost = answering(self._cluster)
        keys_ = [self._keys(batch).batch for batch in batches]
        places = {key: self._cluster.slots.place_of(slot_of(key)) for key in keys_}
        there = [key for key in keys_ if places[key] not in lost]
        with self._cluster.calls.patience(SLOT_PATIENCE_S):
            requests = self._cluster.tried([(("HMGET", key, *names), None) for key in there])
        replies = dict(zip(there, (request.reply for request in requests), strict=True))
        for key, place in places.items():
            if place in lost:
                replies[key] = BrokerUnavailable(f"{place or 'no node'}: {lost[place]}")
        return [replies[key] for key in keys_]


def _each(values: Any) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _sum(values: list[int | None]) -> int | None:
    """Return the sum; None if a value is unknown or unlimited."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _node(place: Place, slots: int, wire: Wire | ReliqError) -> Node:
    up, memory = not isinstance(wire, BrokerUnavailable), None
    if not isinstance(wire, ReliqError):
        try:
            memory = number_of(parse(wire.ask(("INFO", "memory"), PATIENCE_S)).get("used_memory"))
        except BrokerUnavailable:
            up = False
        except ReliqError:  # the query is refused, but the node is up
            memory = None
    return Node(str(place), up=up, slots=slots, memory_bytes=memory)


def _named(finding: Finding, places: list[Place], count: int) -> Finding:
    everywhere = len(places) == count > 1
    who = f"all {count} masters" if everywhere else ", ".join(map(str, places))
    return Finding(finding.check, finding.severity, f"{who}: {finding.message}", finding.remedy)


def _lost(place: Place, error: ReliqError) -> Finding:
    return Finding(
        "node",
        "error",
        f"{place} has slots and cannot be queried: {error}",
        "start it again; if it is permanently lost, promote a replica "
        "(CLUSTER FAILOVER TAKEOVER at the replica)",
    )
