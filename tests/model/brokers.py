"""The brokers under the model: the engines of the contract suite, each with a settable clock."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from fakeredis import TcpFakeServer

from reliq.errors import ReliqError
from reliq.lua import scripts
from reliq.lua.keys import queue_keys
from tests.contract.engines import ClusterEngine, OverRedis, RedisEngine
from tests.model.clocks import Clock, ClusterClock, FakeClock, ScriptedClock
from tests.model.jobs_oracle import BATCHES
from tests.model.snapshot import LOOK, Snapshot
from tests.model.stepping import OTHER, QUEUE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reliq.values.protocol import Store
    from tests.model.terms import Settings


class FakeRedisEngine(OverRedis):
    """fakeredis behind a socket, in this process; it runs the same Lua."""

    def __init__(self) -> None:
        self._server = TcpFakeServer(("127.0.0.1", 0), server_type="redis", server_version=(7, 0))
        # Without this, consecutive replies would wait 40 ms for an acknowledgement.
        self._server.RequestHandlerClass.disable_nagle_algorithm = True
        # The server checks its stop flag at this interval. The default costs half a second at the
        # end.
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.02,), daemon=True)
        self._thread.start()
        host, port = self._server.server_address[:2]
        super().__init__(f"reliq://{host}:{port}/0")
        # The server closes a connection after every error reply, and NOSCRIPT is one.
        for script in vars(scripts).values():
            if isinstance(script, scripts.Script):
                self._client.script_load(script.text)

    def connect(self, consumer: str, **options: Any) -> Store:
        """Open a store over TCP that ends its pending wait when it is closed.

        This server does not notice a closed waiting connection, and would give it the next
        notification.
        """
        store = super().connect(consumer, **options)
        close, notification = store.close, store.notifier

        def end_wait_and_close() -> None:
            if notification.listening:
                for queue in notification.queues:
                    name = queue_keys(options.get("global_keyprefix", ""), queue).notification
                    self._client.rpush(name, "1")
                with contextlib.suppress(ReliqError):
                    notification.wait(5.0)
            close()

        store.close = end_wait_and_close  # type: ignore[method-assign]
        return store

    def stop(self) -> None:
        """Stop the server."""
        super().stop()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Broker:
    """A broker under the model: one connection for each consumer, and read access to every key."""

    routes_beside = False
    """Whether the client checks the version of the bindings: stale publications are stored too."""

    def __init__(self, engine: FakeRedisEngine | RedisEngine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self._client = engine._client
        self._look = self._client.script_load(LOOK)
        self._stores: dict[tuple[Settings, int], Store] = {}

    def clear(self) -> None:
        """Remove all queues."""
        self.engine.clear()
        self.clock.advance(1)

    def hold_mutex(self, queue: str, remaining_ms: int) -> None:
        """Set the remaining time of the mutex of a queue's pass."""
        self.clock.hold(queue_keys("", queue).unacked_mutex, remaining_ms)

    def store(self, settings: Settings, number: int, consumer: str) -> Store:
        """Return the connection of consumer *number*, and give it the name *consumer*."""
        store = self._stores.get((settings, number))
        if store is None:
            backoff = tuple(ms / 1000 for ms in settings.backoff_ms)
            store = self._stores[settings, number] = self.engine.connect(
                consumer,
                delivery_limit=settings.delivery_limit,
                dead_letter_max=settings.dead_letter_max,
                dead_letter_ttl=settings.dead_letter_ttl_ms / 1000,
                restore_interval=settings.restore_interval_ms / 1000,
                redelivery_backoff=backoff if all(backoff) else None,
            )
        store.consumer = consumer
        return store

    def snapshot(self, queue: str) -> Snapshot:
        """Return all stored data of a queue, read at one instant."""
        reply: list[Any] = self._client.evalsha(self._look, 1, queue_keys("", queue).messages)
        return Snapshot.read(reply)

    def take_notification(self, queue: str) -> bool:
        """Take the notification, as a waiting consumer does; return whether there was one."""
        return self._client.lpop(queue_keys("", queue).notification) is not None

    def close(self) -> None:
        """Close the connections and stop the server."""
        for store in self._stores.values():
            store.close()
        self.engine.stop()


class ClusterBroker(Broker):
    """A cluster under the model: each queue is read on its node."""

    engine: ClusterEngine
    routes_beside = True

    def __init__(self, engine: ClusterEngine, clock: ClusterClock) -> None:
        self.engine = engine
        self.clock = clock
        self._stores = {}
        for client in engine._clients:
            self._look = client.script_load(LOOK)

    def snapshot(self, queue: str) -> Snapshot:
        """Return all stored data of a queue, read at one instant."""
        key = queue_keys("", queue).messages
        reply: list[Any] = self.engine.client_of(key).evalsha(self._look, 1, key)
        return Snapshot.read(reply)

    def take_notification(self, queue: str) -> bool:
        """Take the notification, as a waiting consumer does; return whether there was one."""
        key = queue_keys("", queue).notification
        return self.engine.client_of(key).lpop(key) is not None


BROKERS = ("fakeredis", "redis", "cluster")


@contextlib.contextmanager
def running(name: str) -> Iterator[Broker]:
    """Run the broker *name*."""
    with contextlib.ExitStack() as stack:
        if name == "fakeredis":
            fake = FakeClock()
            stack.enter_context(fake.installed())
            broker = Broker(FakeRedisEngine(), fake)
        elif name == "cluster":
            stack.enter_context(ClusterClock.installed())
            cluster = ClusterEngine()
            places = (QUEUE, OTHER, "%", "x", *BATCHES)
            broker = ClusterBroker(cluster, ClusterClock(cluster.client_of, places))
        else:
            stack.enter_context(ScriptedClock.installed())
            engine = RedisEngine()
            broker = Broker(engine, ScriptedClock(engine._client))
        stack.callback(broker.close)
        yield broker
