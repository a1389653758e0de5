"""The brokers that the suite runs on, with a common interface.

A new engine is another class with these methods and another row in ENGINES. Its row of EXCLUDED
names the tests that it cannot pass, each with the reason. Those tests are not collected for it; all
others are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import redis

from reliq.client.cluster.slots import ClusterAddress, slot_of
from reliq.options import parse
from reliq.store.cluster.store import ClusterStore
from reliq.store.store import RedisStore
from reliq.store.urls import address
from tests.support.cluster import ClusterNode, RedisCluster
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from reliq.values.protocol import Store


class Engine(Protocol):
    """One broker of one kind, used by one test at a time."""

    def connect(self, consumer: str, **options: Any) -> Store:
        """Return a connected store; *options* are transport options."""

    def clear(self) -> None:
        """Remove all queues, exchanges and consumers."""

    def forget_caches(self) -> None:
        """Drop the broker's caches."""

    def stop(self) -> None:
        """End the broker, whose stores are closed already."""


class OverRedis:
    """A server that is reached over TCP, real or simulated."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = redis.Redis.from_url(url.replace("reliq://", "redis://"), protocol=2)

    def connect(self, consumer: str, **options: Any) -> Store:
        """Open a store over TCP."""
        store = RedisStore(address(self._url), parse(options), consumer)
        store.connect()
        return store

    def clear(self) -> None:
        """Delete every key."""
        self._client.flushall()

    def client_of(self, key: str) -> redis.Redis:
        """Return a client of the server, which has every key."""
        del key
        return self._client

    def forget_caches(self) -> None:
        """Drop the scripts."""
        self._client.script_flush()

    def stop(self) -> None:
        """Close the client."""
        self._client.close()


class RedisEngine(OverRedis):
    """A real redis-server, chosen by RELIQ_TEST_REDIS."""

    def __init__(self) -> None:
        self._server = RedisServer().start()
        super().__init__(self._server.url())
        # A lease ends at the earliest one lease after the start of the server. After this wait, the
        # short leases of the suite may end.
        wait_until(lambda: self._client.info("server")["uptime_in_seconds"] >= 1)

    def stop(self) -> None:
        """End the server."""
        super().stop()
        self._server.destroy()


class ClusterEngine:
    """A real cluster of three masters."""

    def __init__(self) -> None:
        self._cluster = RedisCluster(3).start()
        self._owners: dict[int, ClusterNode] = {}
        masters = self._cluster.masters
        self._address = ClusterAddress(tuple(address(node.url()) for node in masters))
        self._clients = [node.client() for node in masters]
        for client in self._clients:
            wait_until(lambda client=client: client.info("server")["uptime_in_seconds"] >= 1)

    def connect(self, consumer: str, **options: Any) -> Store:
        """Open a store that knows all nodes."""
        store = ClusterStore(self._address, parse(options), consumer)
        store.connect()
        return store

    def client_of(self, key: str) -> redis.Redis:
        """Return a client of the node that has *key*."""
        return self._clients[self._cluster.masters.index(self._owner(slot_of(key)))]

    def _owner(self, slot: int) -> ClusterNode:
        if slot not in self._owners:
            self._owners[slot] = self._cluster.owner(slot)
        return self._owners[slot]

    def clear(self) -> None:
        """Delete every key."""
        for client in self._clients:
            client.flushall()

    def forget_caches(self) -> None:
        """Drop the scripts."""
        for client in self._clients:
            client.script_flush()

    def stop(self) -> None:
        """End the nodes."""
        for client in self._clients:
            client.close()
        self._cluster.destroy()


_BESIDE = "the version of the bindings is read beside the script, so what is stale may be stored"

NOT_ON_CLUSTER = {
    "test_waits_for_what_it_was_told": "each node is waited for by itself: more may join the wait",
    "test_outcomes_come_in_the_order_of_the_messages": _BESIDE,
    "test_a_stale_route_stores_nothing": _BESIDE,
    "test_a_stale_route_uses_up_no_number": _BESIDE,
    "test_a_route_through_bindings_that_are_gone_is_stale": _BESIDE,
}

ENGINES: dict[str, Callable[[], Engine]] = {
    "redis": RedisEngine,
    "cluster": ClusterEngine,
}
EXCLUDED: dict[str, dict[str, str]] = {
    "cluster": NOT_ON_CLUSTER,
}
