"""The doctor's findings about a cluster: slots, replicas, users and clocks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..client.cluster.nodes import PATIENCE_S
from ..client.cluster.slots import SLOTS
from ..client.connect import LOGIN_REFUSED
from ..client.wire import Wire
from ..errors import ReliqError
from ..values.inspection import Finding
from .server import Server
from .server_info import FARTHEST_S, judge_clock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from ..client.cluster.slots import Place
    from ..client.cluster.wire import ClusterWire
    from ..client.stream import Command

# confirm="replicated" waits for one replica; a second one keeps it working when one is lost.
_REPLICAS_WANTED = 2
# In the line of the queried node: [slot->-target node] or [slot-<-source node].
_OPEN = re.compile(r"\[(\d+)-([<>])-(\w+)\]")
_REMEDY = (
    "send it the ACL SETUSER or the requirepass of its master (ACL LIST there prints the users): "
    "nodes do not share users, and after a failover the replica would refuse clients"
)


# -- slots


def judge_slots(uncovered: int) -> Iterator[Finding]:
    """Report whether slots have no node."""
    if uncovered:
        yield Finding(
            "slots",
            "error",
            f"{uncovered} of {SLOTS} slots have no node: their queues are unusable; with "
            "cluster-require-full-coverage yes (the default), all queues are",
            "redis-cli --cluster fix HOST:PORT, with the address of any node",
        )
    else:
        yield Finding("slots", "ok", f"{SLOTS} of {SLOTS} have a node")


class OpenSlot(NamedTuple):
    """A slot that is moving from or to a node, according to one of the two nodes.

    Slots move one at a time, and each is open while its keys move. A slot that stays open belongs
    to an interrupted move. Its queues are unusable, because their keys are at two nodes.
    """

    slot: int
    source: str
    target: str


def open_slots(reply: str) -> set[OpenSlot]:
    """Return the open slots that a node reports in its reply to CLUSTER NODES."""
    names: dict[str, str] = {}
    mine: list[str] = []
    for line in reply.splitlines():
        fields = line.split()
        if len(fields) < 3:  # noqa: PLR2004 - id, address, flags
            continue
        names[fields[0]] = fields[1].partition("@")[0]
        if "myself" in fields[2].split(","):
            mine = fields
    slots = set()
    for slot, way, other in _OPEN.findall(" ".join(mine)):
        ends = (names[mine[0]], names.get(other, other))
        source, target = ends if way == ">" else ends[::-1]
        slots.add(OpenSlot(int(slot), source, target))
    return slots


def judge_open_slots(before: Iterable[OpenSlot], now: Iterable[OpenSlot]) -> Iterator[Finding]:
    """Report open slots. *before*: the slots that were open a second ago."""
    stayed = set(before)
    for slot, source, target in sorted(set(now)):
        where = f"slot {slot} is open, moving from {source} to {target}"
        if (slot, source, target) in stayed:
            yield Finding(
                "slots",
                "error",
                f"{where}, and does not change: unless a move is in progress, it was interrupted, "
                "and commands on queues in this slot fail after socket_timeout",
                f"redis-cli --cluster fix {source}, when no slots are being moved",
            )
        else:
            yield Finding("slots", "info", f"{where}: a move is in progress")


# -- replicas


def judge_replicas(counts: Mapping[Place, int]) -> Iterator[Finding]:
    """Report the number of replicas of each master."""
    wanted = f'use {_REPLICAS_WANTED} for each master with confirm="replicated"'
    bare = sorted(place for place, count in counts.items() if not count)
    if bare:
        yield Finding(
            "replicas",
            "warning",
            f"{', '.join(map(str, bare))}: no replica, so its queues are unreachable while the "
            "node is",
            f"redis-cli --cluster add-node NEW:PORT HOST:PORT --cluster-slave; {wanted}, "
            "so that it keeps working when one is lost",
        )
    elif counts:
        fewest = min(counts.values())
        note = f"; {wanted}" if fewest < _REPLICAS_WANTED else ""
        yield Finding("replicas", "ok", f"at least {fewest} for each master{note}")


def examine_replicas(
    cluster: ClusterWire, prefix: str, lacking: Collection[Command]
) -> Iterator[Finding]:
    """Log in at each replica as at its master. *lacking*: commands that the masters refuse.

    ACL SETUSER is not replicated, so a failover may lock all clients out. reliq's roles may not
    read ACL rules (ACL GETUSER shows password hashes), so this tries each command.
    """
    user = cluster.address.seeds[0].username or "default"
    good = 0
    for place in sorted(cluster.slots.replicas):
        finding = _examine(cluster, place, user, prefix, lacking)
        good += finding is None
        if finding is not None:
            yield finding
    if good:
        yield Finding(
            "replica acl",
            "ok",
            f"{good} replica{'s know' if good > 1 else ' knows'} user {user!r} as the masters do",
        )


def _examine(
    cluster: ClusterWire, place: Place, user: str, prefix: str, lacking: Collection[Command]
) -> Finding | None:
    timeout_s = min(cluster.options.socket_connect_timeout, PATIENCE_S)
    options = replace(cluster.options, socket_connect_timeout=timeout_s)
    wire = Wire(cluster.slots.address(place), options, cluster.name)
    try:
        wire.connect()
        refused = Server(wire, prefix).refuses(lacking)
    except ReliqError as exc:
        if LOGIN_REFUSED in str(exc):
            text = f"replica {place} refuses the login of user {user!r}, unlike its master: {exc}"
            return Finding("replica acl", "warning", text, _REMEDY)
        text = f"replica {place} cannot be checked for user {user!r}: {exc}"
        remedy = "start it, or remove it from the cluster (CLUSTER FORGET at each other node)"
        return Finding("replica acl", "warning", text, remedy)
    finally:
        wire.close()
    if not refused:
        return None
    names = ", ".join(refused)
    text = f"replica {place} refuses user {user!r} commands that its master allows: {names}"
    return Finding("replica acl", "warning", text, _REMEDY)


# -- clocks


def judge_clocks(clocks: Mapping[Place, tuple[float, float]]) -> Iterator[Finding]:
    """Compare clocks. For each node: seconds ahead of this machine, and seconds of the query."""
    if not clocks:
        return
    first, last = (choose(clocks, key=lambda p: clocks[p][0]) for choose in (max, min))
    (ahead_s, first_s), (behind_s, last_s) = clocks[first], clocks[last]
    apart_s = ahead_s - behind_s
    if apart_s - (first_s + last_s) / 2 > FARTHEST_S:
        yield Finding(
            "clock",
            "warning",
            f"the clock of {first} is {apart_s:.1f} s ahead of that of {last}: delays and TTLs "
            "follow the clock of the queue's node",
            "synchronize the clocks of all nodes by NTP",
        )
        return
    farthest = max(clocks, key=lambda p: abs(clocks[p][0]))
    off_s, took_s = clocks[farthest]
    slowest_ms = max(took for _, took in clocks.values()) * 1000
    text = f"{len(clocks)} nodes within {abs(off_s):.2f} s; an answer took {slowest_ms:.1f} ms"
    machines = "the nodes and this machine"
    wrong = judge_clock(f"the clock of {farthest}", machines, off_s, took_s)
    yield wrong or Finding("clock", "ok", text)
