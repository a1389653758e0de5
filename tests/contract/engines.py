"""The brokers that the suite runs on, each behind the same few methods.

A new engine is one more class with these methods and one more row in ENGINES.
What an engine cannot show is named test by test, with the reason, in its row of
EXCLUDED: those tests are not collected for it, all others are.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import redis
from fakeredis import TcpFakeServer

from reliq.engines.redis import scripts
from reliq.engines.redis.cluster.address import ClusterAddress
from reliq.engines.redis.cluster.slots import slot_of
from reliq.engines.redis.cluster.store import ClusterStore
from reliq.engines.redis.keys import queue_keys
from reliq.engines.redis.store import RedisStore
from reliq.engines.urls import address
from reliq.errors import ReliqError
from reliq.options import parse
from tests.support.cluster import ClusterNode, RedisCluster
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from reliq.store.protocol import Store


class Engine(Protocol):
    """One broker of one kind, used by one test at a time."""

    def connect(self, consumer: str, **options: Any) -> Store:
        """Return a connected store; *options* are transport options."""

    def clear(self) -> None:
        """Forget all queues, exchanges and consumers."""

    def forget_caches(self) -> None:
        """Drop what the broker keeps only to be faster."""

    def stop(self) -> None:
        """End the broker; stores are closed already."""


class _OverRedis:
    """What a real and a fake Redis have in common: they are spoken to over TCP."""

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

    def forget_caches(self) -> None:
        """Drop the scripts."""
        self._client.script_flush()

    def stop(self) -> None:
        """Close the client."""
        self._client.close()


class RedisEngine(_OverRedis):
    """A real redis-server; RELIQ_TEST_REDIS chooses which."""

    def __init__(self) -> None:
        self._server = RedisServer().start()
        super().__init__(self._server.url())
        # A lease runs out no sooner than one lease after the server came up: the
        # short ones of the suite may, from now on.
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


class FakeRedisEngine(_OverRedis):
    """fakeredis behind a socket: it runs the same Lua, in this process."""

    def __init__(self) -> None:
        self._server = TcpFakeServer(("127.0.0.1", 0), server_type="redis", server_version=(7, 0))
        # Replies that follow each other at once would wait 40 ms for an acknowledgement.
        self._server.RequestHandlerClass.disable_nagle_algorithm = True
        # It looks at its flag only so often: at the default, half a second is spent at the end.
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.02,), daemon=True)
        self._thread.start()
        host, port = self._server.server_address[:2]
        super().__init__(f"reliq://{host}:{port}/0")
        # It closes a connection with each error it replies, NOSCRIPT too.
        for script in vars(scripts).values():
            if isinstance(script, scripts.Script):
                self._client.script_load(script.text)

    def connect(self, consumer: str, **options: Any) -> Store:
        """Open a store over TCP that leaves no wait behind when it is closed.

        This server does not notice that who waits is gone, and would give it the next ring.
        """
        store = super().connect(consumer, **options)
        close, notification = store.close, store.notifier

        def end_wait_and_close() -> None:
            if notification.listening:
                for queue in notification.queues:
                    name = queue_keys(options.get("global_keyprefix", ""), queue).notification
                    self._client.rpush(name, "1")
                with suppress(ReliqError):
                    notification.wait(5.0)
            close()

        store.close = end_wait_and_close  # type: ignore[method-assign]
        return store

    def stop(self) -> None:
        """End the server."""
        super().stop()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_NO_INFO = "fakeredis has no INFO: no run id, no uptime"
_SMALL = "TcpFakeServer cannot send a reply that is larger than what its socket takes at once"
_CLOSES = "TcpFakeServer closes a connection with each error it replies"

NOT_ON_FAKEREDIS = {
    "test_server_names_connection_and_run": _NO_INFO,
    "test_liveness_of_a_connected_consumer": _NO_INFO,
    "test_liveness_of_a_consumer_whose_connection_is_gone": _NO_INFO,
    "test_liveness_of_another_run_of_the_server": _NO_INFO,
    "test_liveness_of_one_that_never_came": _NO_INFO,
    "test_a_forgotten_consumer_is_not_known": _NO_INFO,
    "test_a_record_lapses_without_heartbeats": _NO_INFO,
    "test_the_register_can_be_read": _NO_INFO,
    "test_the_register_names_no_ghosts": _NO_INFO,
    "test_what_a_worker_runs_is_in_the_register": _NO_INFO,
    "test_the_register_knows_pools_and_options": _NO_INFO,
    "test_a_worker_that_lives": _NO_INFO,
    "test_a_worker_that_is_gone": _NO_INFO,
    "test_a_worker_that_is_silent": _NO_INFO,
    "test_another_worker_took_it_over": _NO_INFO,
    "test_a_broker_says_what_it_is": _NO_INFO,
    "test_a_diagnosis_says_what_was_looked_at": _NO_INFO,
    "test_a_young_server_restores_nothing": _NO_INFO,
    "test_a_cache_that_is_lost_costs_nothing": _CLOSES,
    "test_one_message_comes_whatever_its_size": _SMALL,
}

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
    "fakeredis": FakeRedisEngine,
}
EXCLUDED: dict[str, dict[str, str]] = {
    "cluster": NOT_ON_CLUSTER,
    "fakeredis": NOT_ON_FAKEREDIS,
}
