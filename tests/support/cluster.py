"""A real Redis Cluster on loopback: masters, replicas, and slots that move between masters."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import redis
from redis.crc import key_slot

from reliq.lua.keys import broker_keys
from tests.support.contents import value_of
from tests.support.servers import RedisServer, free_port, has_tls
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from tests.support.processes import Process

SLOTS = 16384
ANCHOR = key_slot(broker_keys("").queues.encode())
"""The slot of data that belongs to no queue."""
# Silence after which a node counts as failing: short, so that a test sees a failover in seconds.
NODE_TIMEOUT_MS = 2000


class ClusterNode(RedisServer):
    """One server in cluster mode.

    A binary without TLS announces the process in front of it; the nodes then talk without TLS.
    """

    # The bus port is 10,000 above, and must also be below the kernel's range.
    ports = range(18_000, 22_500)

    def __init__(self, *, node_timeout_ms: int = NODE_TIMEOUT_MS, **options: Any) -> None:
        cluster = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms)]
        super().__init__(extra=[*cluster, *options.pop("extra", ())], **options)
        self._speaks_tls = self.tls is not None and has_tls(self.binary)
        if self._speaks_tls:
            self.extra += ["--tls-cluster", "yes", "--tls-replication", "yes"]
        self._settings = self.extra

    def _spawn(self) -> Process:
        if self.tls is not None and not self._speaks_tls:  # Redis 6.2 reads it only as it starts
            self.tls_port = self.tls_port or free_port(self.ports)
            self.extra = [*self._settings, "--cluster-announce-port", str(self.tls_port)]
        return super()._spawn()

    @property
    def id(self) -> str:
        """Its id in the cluster."""
        return self.ask("CLUSTER", "MYID").decode()

    @property
    def announced_port(self) -> int:
        """The port that it announces to clients."""
        return self.tls_port or self.port

    @property
    def peer_port(self) -> int:
        """The port for other nodes, which do not use a process in front."""
        return self.announced_port if self._speaks_tls else self.port

    def ask(self, *command: Any) -> Any:
        """Send one command; return the server's reply."""
        with self.client() as client:
            return client.execute_command(*command)


class RedisCluster:
    """Masters that share the slots, each with the same number of replicas."""

    def __init__(
        self,
        masters: int = 3,
        replicas: int = 0,
        *,
        slots: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        """Assign to each master its number of *slots*; evenly by default."""
        self._slots = slots or [SLOTS // masters] * (masters - 1) + [
            SLOTS - SLOTS // masters * (masters - 1)
        ]
        assert SLOTS == sum(self._slots)
        self.masters = [ClusterNode(**options) for _ in range(masters)]
        self.replicas = [ClusterNode(**options) for _ in range(masters * replicas)]
        self.seeds = self.masters

    @property
    def nodes(self) -> list[ClusterNode]:
        """All nodes."""
        return [*self.masters, *self.replicas]

    def url(self, scheme: str = "reliq", db: int = 0) -> str:
        """Return the URL of the seeds, which are all masters unless a test changes them."""
        del scheme, db
        first, *others = [f"reliq-cluster://127.0.0.1:{n.announced_port}" for n in self.seeds]
        if self.seeds[0].tls is not None:
            first += f"?{urlencode({'ssl_ca_certs': str(self.seeds[0].tls.ca)})}"
        return ";".join([first, *others])

    # -- life

    def start(self) -> RedisCluster:
        """Start all nodes; return when each reports a complete cluster."""
        for node in self.nodes:
            node.start()
        first, *others = self.nodes
        begin = 0
        for master, count in zip(self.masters, self._slots, strict=True):
            if count:
                with master.client() as client:
                    client.execute_command("CLUSTER", "ADDSLOTS", *range(begin, begin + count))
            begin += count
        # Nodes that begin with the same epoch settle that among themselves later, and may then
        # claim slots that have moved meanwhile: two nodes refer to each other, for good.
        for number, node in enumerate(self.nodes, 1):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number)

        def all_met() -> bool:
            """Begin missing handshakes: one that outlasts a node timeout is forgotten."""
            for node in others:
                if first.id not in self._met(node):
                    node.ask("CLUSTER", "MEET", "127.0.0.1", first.peer_port)
            return all(len(self._met(node)) == len(self.nodes) for node in self.nodes)

        wait_until(all_met, timeout_s=30, interval_s=0.5, what="nodes that know each other")
        for place, replica in enumerate(self.replicas):
            replica.ask("CLUSTER", "REPLICATE", self.masters[place % len(self.masters)].id)
        self.wait_whole()
        for replica in self.replicas:
            replica.wait_synced()
        return self

    def wait_whole(self, timeout_s: float = 30.0) -> None:
        """Wait until each node reports a complete cluster."""
        wait_until(
            lambda: all(self._is_whole(node) for node in self.nodes),
            timeout_s=timeout_s,
            what="a cluster that is whole",
        )

    def flush(self) -> None:
        """Delete all keys."""
        for node in self.masters:
            with node.client() as client:
                client.flushall()

    def __enter__(self) -> Self:
        """Start the cluster."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the nodes and delete their data."""
        self.destroy()

    def destroy(self) -> None:
        """Kill all nodes and delete their data."""
        for node in self.nodes:
            if node.running:
                node.thaw()
            node.destroy()

    @staticmethod
    def _met(node: ClusterNode) -> set[str]:
        """Return the ids of nodes known to *node*, including its own."""
        reply = node.ask("CLUSTER", "NODES")
        lines = (reply.decode() if isinstance(reply, bytes) else reply).splitlines()
        found = {words[0]: words[2] for words in map(str.split, lines)}
        return {name for name, flags in found.items() if "handshake" not in flags}

    @staticmethod
    def _is_whole(node: ClusterNode) -> bool:
        info = _fields(node.ask("CLUSTER", "INFO"))
        return info["cluster_state"] == "ok" and info["cluster_slots_ok"] == str(SLOTS)

    # -- slots

    def owner(self, slot: int) -> ClusterNode:
        """Return the master of a slot, according to the first running node."""
        for asked in [node for node in self.nodes if node.running]:
            with suppress(redis.ConnectionError):  # it has just ended
                for first, last, (_, port, *_), *_ in asked.ask("CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(n for n in self.nodes if port in {n.port, n.tls_port})
                break
        raise LookupError(f"nobody has slot {slot}")


class Migration:
    """The move of one slot from one master to another, which a test can stop at any step."""

    def __init__(self, source: ClusterNode, target: ClusterNode, key: str) -> None:
        self.source, self.target = source, target
        self.slot = key_slot(key.encode())

    def open(self) -> None:
        """Inform source and target: keys may then be at either."""
        self.target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target.id)

    def keys(self, node: ClusterNode) -> list[bytes]:
        """Return the keys of the slot that are at *node*, in order."""
        return sorted(node.ask("CLUSTER", "GETKEYSINSLOT", self.slot, 10_000))

    def move(self, keys: Iterable[bytes]) -> None:
        """Move *keys*, as redis-cli does."""
        chosen = list(keys)
        if chosen:
            where = ("127.0.0.1", self.target.peer_port, "", 0, 5000, "KEYS", *chosen)
            self.source.ask("MIGRATE", *where)

    def end(self) -> None:
        """Move the remaining keys, and assign the slot to the target."""
        self.move(self.keys(self.source))
        for node in (self.target, self.source):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)

    def contents(self) -> dict[bytes, Any]:
        """Return the contents of the slot at both nodes, key by key."""
        found: dict[bytes, Any] = {}
        for node, asking in ((self.source, False), (self.target, True)):
            with node.client(single_connection_client=True) as client:
                for key in self.keys(node):
                    found[key] = value_of(client, key, asking=asking)
        return found


def _fields(reply: Any) -> dict[str, str]:
    if isinstance(reply, dict):
        return {str(key): str(value) for key, value in reply.items()}
    text = reply.decode() if isinstance(reply, bytes) else reply
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
