"""The broker of a run over a cluster: three masters with two replicas each, and views of them.

There are two replicas because a publish is confirmed when a replica has it. With one, no publish
would be confirmed from the death of a master until its return. Every write is synced to disk, so
that a node that returns before it is replaced has all confirmed data.
"""

from __future__ import annotations

import re
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster as ClusterClient
from redis.crc import key_slot
from redis.retry import Retry

from reliq.lua.keys import broker_keys, queue_keys
from reliq.message.queue_names import partition_names
from tests.chaos import keys
from tests.chaos.broker import Broker, View
from tests.chaos.model import PROMOTION, Fault
from tests.chaos.settings import CALLBACKS, DIVIDED, MOST_PARTITIONS, QUEUES
from tests.support.cluster import ClusterNode, RedisCluster
from tests.support.servers import RedisServer, redis_binary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MASTERS, REPLICAS = 3, 2
NODE_TIMEOUT_MS = 2000
_PATIENCE_S = 5.0
_FAILING = {"fail", "fail?", "handshake", "noaddr"}
_EXTRA = [
    # As docs/cluster.md recommends: the loss of a node does not stop all queues.
    "--cluster-require-full-coverage",
    "no",
    # Each master keeps its two replicas, whatever slots it has.
    "--cluster-allow-replica-migration",
    "no",
]

# Time in which a node that has returned may still cause an election.
_SETTLES_S = 3.0
_ELECTED = re.compile(r"(\d+ \w+ \d{4} \d+:\d+:\d+)\.(\d+) \S Failover election won")

# Time before a node that stood for election may stand again. Until then, Redis would elect another
# replica, which may lack confirmed data. (auth_retry_time in cluster.c)
_STANDS_AGAIN_S = 4 * NODE_TIMEOUT_MS / 1000 + 0.5

# Longest time until a master counts as failing, on a machine that is not too busy.
_ELECTED_AFTER_S = 2.0

DISAGREE = "the nodes disagree about slots"
HANDED_OVER = "node-failover"
ANCHOR = "%"
"""Stands for data that belongs to no queue: consumers, exchanges, the list of queues."""
_PARTITIONS = partition_names(DIVIDED, MOST_PARTITIONS)
KEYS = {
    **{name: queue_keys("", name).meta for name in (*QUEUES, CALLBACKS, *_PARTITIONS)},
    ANCHOR: broker_keys("").queues,
}
"""A key in each slot that a run uses: of queues, of partitions, and of the anchor."""


@dataclass(frozen=True)
class Claim:
    """A node's report about itself."""

    node: ClusterNode
    master: bool
    epoch: int
    ranges: tuple[tuple[int, int], ...]
    open: bool
    """Whether one of its slots is moving."""

    def has(self, slot: int) -> bool:
        """Whether the node owns the slot."""
        return self.master and any(first <= slot <= last for first, last in self.ranges)


def read_claim(node: ClusterNode, text: str) -> Claim:
    """Return the report of *node* about itself in its reply to CLUSTER NODES."""
    words = next(line.split() for line in text.splitlines() if "myself" in line.split()[2])
    ranges = [word for word in words[8:] if not word.startswith("[")]
    edges = [tuple(map(int, word.split("-"))) for word in ranges]
    return Claim(
        node,
        "master" in words[2],
        int(words[6]),
        tuple((edge[0], edge[-1]) for edge in edges),
        len(ranges) < len(words[8:]),
    )


def layout(text: str) -> dict[str, tuple[str, ...]]:
    """Return the owners of slots in a reply to CLUSTER NODES: id -> slots."""
    lines = [line.split() for line in text.splitlines()]
    return {
        words[0]: tuple(word for word in words[8:] if not word.startswith("["))
        for words in lines
        if words[8:]
    }


class ClusterBroker(Broker):
    """The cluster described at the head of this file."""

    def __init__(self, *, second: bool = False) -> None:
        assert not second, "a cluster stands alone"
        self.second = None
        self._stack = ExitStack()
        self._clients: dict[int, redis.Redis] = {}
        self.away: set[ClusterNode] = set()
        """Nodes that a fault has killed or frozen, and that must not be queried."""
        self.cluster = RedisCluster(
            MASTERS, REPLICAS, node_timeout_ms=NODE_TIMEOUT_MS, appendonly=True, extra=_EXTRA
        )
        self._stack.callback(self._end)
        try:
            self.cluster.start()
        except BaseException:
            self._stack.close()
            raise

    def _end(self) -> None:
        for client in self._clients.values():
            client.close()
        self.cluster.destroy()

    # -- the interface of a broker

    @property
    def servers(self) -> list[RedisServer]:
        """All nodes."""
        return list(self.cluster.nodes)

    @property
    def options(self) -> dict[str, object]:
        """The transport options that the URL needs."""
        return {"confirm": "replicated", "confirm_timeout": 2.0}

    def url(self, scheme: str) -> str:
        """Return the URL for clients."""
        return self.cluster.url(scheme)

    def views(self) -> Iterator[View]:
        """Yield the single external view."""
        yield View("", self.url("reliq"), self._from_outside)

    def _from_outside(self) -> Any:
        node = next(node for node in self.cluster.nodes if node not in self.away)
        return ClusterClient(host="127.0.0.1", port=node.port)

    def clients(self) -> list[redis.Redis]:
        """Return a client of each master."""
        return [node.client() for node in self.masters()]

    def unexplained(self, client: redis.Redis) -> list[str]:
        """Return unexplained keys, and keys at a node that does not own their slot."""
        wrong = keys.unexplained(client)
        for claim in self.claims():
            for raw in self.client_of(claim.node).scan_iter(count=1000) if claim.master else ():
                if not claim.has(key_slot(raw)):
                    wrong.append(f"{raw.decode()}: at {claim.node.port}, which has not its slot")
        return wrong

    def by_itself(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return elections that no fault has caused: a master was slow to respond."""
        logs = "\n".join(node.log() for node in self.cluster.nodes)
        return promotions(elections(logs), faults)

    # -- the present nodes

    def client_of(self, node: ClusterNode) -> redis.Redis:
        """Return a client of one node, which stays open."""
        found = self._clients.get(node.port)
        if found is None:
            found = self._clients[node.port] = redis.Redis(
                host="127.0.0.1",
                port=node.port,
                protocol=2,
                socket_timeout=_PATIENCE_S,
                retry=Retry(NoBackoff(), 1),  # a fault kills all clients, including these
            )
        return found

    def ask(self, node: ClusterNode, *command: Any) -> Any:
        """Send one command to one node."""
        client: Any = self.client_of(node)
        return client.execute_command(*command)

    def claims(self) -> list[Claim]:
        """Return the reports of all responding nodes about themselves."""
        found = []
        for node in self.cluster.nodes:
            if node not in self.away:
                try:
                    found.append(read_claim(node, _text(self.ask(node, "CLUSTER", "NODES"))))
                except redis.ConnectionError:
                    continue  # it has just started, or the client was killed
        return found

    def owner(self, name: str) -> ClusterNode | None:
        """Return the owner of the slot of a queue, or of ANCHOR; None: no node at the moment."""
        return owner_of(self.claims(), slot(name))

    def masters(self) -> list[ClusterNode]:
        """Return the masters that have slots."""
        return [claim.node for claim in self.claims() if claim.master and claim.ranges]

    def places_at(self, node: ClusterNode) -> frozenset[str]:
        """Return the names in KEYS whose slot a node owns."""
        claims = self.claims()
        return frozenset(name for name in KEYS if owner_of(claims, slot(name)) is node)

    def serves(self, node: ClusterNode) -> bool:
        """Whether a node is part of a cluster that it reports as complete."""
        try:
            return "cluster_state:ok" in _text(self.ask(node, "CLUSTER", "INFO"))
        except redis.RedisError:
            return False

    def replicas_of(self, node: ClusterNode) -> list[ClusterNode]:
        """Return the responding replicas of a master."""
        found = []
        for claim in self.claims():
            if not claim.master:
                info = self.client_of(claim.node).info("replication")
                if int(info["master_port"]) == node.port:
                    found.append(claim.node)
        return found

    def wait_replicated(self, node: ClusterNode) -> bool:
        """Wait until the replicas of a master have all its data; return whether they do."""
        with node.client(single_connection_client=True) as client:
            client.ping()  # WAIT covers what this connection has seen, which is now all.
            return bool(int(client.wait(REPLICAS, 3000)) >= REPLICAS)

    def was_elected_lately(self, node: ClusterNode) -> bool:
        """Whether replicas that stood for election with a master may not stand again yet."""
        now = time.monotonic()
        return any(now - at < _STANDS_AGAIN_S for at in elections(node.log()))

    def missing(self) -> str:
        """Return the reason why the cluster is incomplete; "" if it is complete."""
        layouts: dict[int, frozenset[Any]] = {}
        for node in self.cluster.nodes:
            if node in self.away:
                return f"{node.port} is away"
            try:
                text = _text(self.ask(node, "CLUSTER", "NODES"))
                state = _text(self.ask(node, "CLUSTER", "INFO"))
                info = self.client_of(node).info("replication")
            except redis.RedisError as exc:
                return f"{node.port}: {exc}"
            flags = {flag for line in text.splitlines() for flag in line.split()[2].split(",")}
            wrong = [
                (flags & _FAILING, "somebody fails"),
                ("cluster_state:ok" not in state, "the cluster is down"),
                (not _in_step(info), "it is not in step with its master, or its replicas"),
                (read_claim(node, text).open, "a slot is on its way"),
            ]
            for found, what in wrong:
                if found:
                    return f"{node.port}: {what}"
            layouts[node.port] = frozenset(layout(text).items())
        agreed = frozenset.intersection(*layouts.values())
        others = {port: sorted(said - agreed) for port, said in layouts.items() if said != agreed}
        return f"{DISAGREE}: {others}" if others else ""

    def adopt(self) -> list[int]:
        """Give back to its owner each slot that this node alone gives to nobody; return the slots.

        In Redis 7.0, a failover right after the move of a slot can leave the new master so for
        ever (redis/redis#12336). `redis-cli --cluster fix` would ask which node is to have it.
        """
        adopted = []
        for node in self.masters():
            given = _slots(self._layout_at(self._another(node)).get(node.id, ()))
            assigned = {number for own in self._layout_at(node).values() for number in _slots(own)}
            lost = sorted(given - assigned)
            if lost:
                self.ask(node, "CLUSTER", "ADDSLOTS", *lost)
                adopted += lost
        return adopted

    def _layout_at(self, node: ClusterNode) -> dict[str, tuple[str, ...]]:
        return layout(_text(self.ask(node, "CLUSTER", "NODES")))

    def _another(self, node: ClusterNode) -> ClusterNode:
        return next(other for other in self.masters() if other is not node)


def _slots(ranges: Iterable[str]) -> set[int]:
    """Return the slots of ranges as CLUSTER NODES writes them: "7" or "7-9"."""
    edges = [text.partition("-") for text in ranges]
    return {
        number for first, _, last in edges for number in range(int(first), int(last or first) + 1)
    }


def _in_step(info: Mapping[str, Any]) -> bool:
    """Whether a replica is in sync with its master, or all replicas of a master are online."""
    if info["role"] == "slave":
        return bool(info["master_link_status"] == "up")
    replicas = [info[f"slave{number}"] for number in range(info["connected_slaves"])]
    return all(replica["state"] == "online" for replica in replicas)


def elections(logs: str) -> list[float]:
    """Return the times (CLOCK_MONOTONIC) of elections of replicas, according to their logs."""
    since = time.time() - time.monotonic()
    return [
        time.mktime(time.strptime(day, "%d %b %Y %H:%M:%S")) + float(f"0.{ms}") - since
        for day, ms in _ELECTED.findall(logs)
    ]


def promotions(elected: Iterable[float], faults: Sequence[Fault]) -> list[Fault]:
    """Return a fault for each election that no fault has caused."""
    meant = [f for f in faults if f.applied and (f.master or f.kind == HANDED_OVER)]
    silent_s = NODE_TIMEOUT_MS / 1000 + _ELECTED_AFTER_S
    return [
        Fault(PROMOTION, at - silent_s, at, master=True, died=at, queues=frozenset(KEYS))
        for at in elected
        if not any(fault.at <= at <= fault.until + _SETTLES_S for fault in meant)
    ]


def owner_of(claims: list[Claim], number: int) -> ClusterNode | None:
    """Return the owner of a slot: of several claimants, the one elected last."""
    found = [claim for claim in claims if claim.has(number)]
    return max(found, key=lambda claim: claim.epoch).node if found else None


def slot(name: str) -> int:
    """Return the slot of a queue, or of ANCHOR."""
    return key_slot(KEYS[name].encode())


def redis_cli() -> str | None:
    """Return the redis-cli beside the server, or in PATH; None if there is none."""
    beside = Path(redis_binary()).with_name("redis-cli")
    return str(beside) if beside.exists() else shutil.which("redis-cli")


def _text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)
