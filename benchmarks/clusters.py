"""A Redis Cluster for the run: masters on loopback, without replicas."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from redis.crc import key_slot

from benchmarks import servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from benchmarks.servers import RedisServer

SLOTS = 16384
# The port of a node's bus is this much higher.
BUS = 10_000
NODE_TIMEOUT_MS = 5_000
WHOLE_WITHIN_S = 30.0
LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Cluster:
    """Servers that share the slots evenly, in order."""

    nodes: tuple[RedisServer, ...]

    def url(self, scheme: str) -> str:
        """Return the broker URL, which names every node."""
        return ";".join(f"{scheme}://127.0.0.1:{node.port}" for node in self.nodes)

    def options(self) -> Mapping[str, Any]:
        """Return no options: the URL is sufficient."""
        return {}

    def empty(self) -> None:
        """Delete all data, scripts and statistics."""
        for node in self.nodes:
            node.empty()

    def describe(self) -> str:
        """Return the number of nodes, the version and the settings."""
        return f"masters: {len(self.nodes)}, replicas: 0; {self.nodes[0].describe()}"

    def owner(self, slot: int) -> RedisServer:
        """Return the owner of a slot."""
        for first, last, (_, port, *_), *_ in self.nodes[0].ask("CLUSTER SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise LookupError(f"no node has slot {slot}")

    def queue_at(self, node: RedisServer) -> str:
        """Return the name of a queue at this node."""
        return next(name for name in _names("beside") if self.owner(slot_of(name)) == node)


def slot_of(queue: str) -> int:
    """Return the hash slot of a queue with a plain name."""
    return int(key_slot(queue.encode()))


def spread(name: str, queues: int) -> list[str]:
    """Return the names of *queues* queues, one in each equal share of the slots."""
    return [
        next(
            found
            for found in _names(f"{name}-{place}")
            if slot_of(found) * queues // SLOTS == place
        )
        for place in range(queues)
    ]


def _names(name: str) -> Iterator[str]:
    return (f"{name}.{number}" for number in count())


@contextmanager
def started(executable: str, settings: Mapping[str, str], masters: int) -> Iterator[Cluster]:
    """Run a cluster of *masters* masters until the block ends."""
    settings = {
        **settings,
        "cluster-enabled": "yes",
        "cluster-node-timeout": str(NODE_TIMEOUT_MS),
    }
    with ExitStack() as stack:
        nodes = tuple(
            stack.enter_context(servers.started(executable, settings, highest_port=65535 - BUS))
            for _ in range(masters)
        )
        for number, node in enumerate(nodes):
            share = range(SLOTS * number // masters, SLOTS * (number + 1) // masters)
            node.ask("CLUSTER ADDSLOTS", *share)
        _wait(lambda: _have_met(nodes) and all(_is_whole(node, masters) for node in nodes))
        yield Cluster(nodes)


def _have_met(nodes: Sequence[RedisServer]) -> bool:
    """Return whether all nodes know the first; begin missing or expired handshakes."""
    first, *others = nodes
    known = first.ask("CLUSTER NODES")
    missing = [node for node in others if f"127.0.0.1:{node.port}" not in known]
    for node in missing:
        node.ask("CLUSTER MEET", "127.0.0.1", first.port)
    return not missing


def _is_whole(node: RedisServer, masters: int) -> bool:
    info = node.ask("CLUSTER INFO")
    return bool(
        info["cluster_state"] == "ok"
        and info["cluster_known_nodes"] == str(masters)
        and info["cluster_slots_ok"] == str(SLOTS)
    )


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WHOLE_WITHIN_S
    while not until():
        if time.monotonic() > deadline:
            raise RuntimeError("the nodes do not become a cluster")
        time.sleep(LOOK_EVERY_S)
