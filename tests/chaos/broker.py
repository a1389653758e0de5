"""The broker of a run: a server, its replica, and a proxy in front of the current master."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import redis

from tests.chaos import keys
from tests.chaos.proxy import Proxy
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from tests.chaos.model import Fault

_NOWHERE = ("127.0.0.1", 1)  # no server listens there.


class View(NamedTuple):
    """Direct access to one broker, without the proxy."""

    where: str
    """The prefix of findings about it."""
    url: str
    client: Callable[[], redis.Redis]


class Broker:
    """Two servers that sync every write to disk; clients see one address, the proxy's.

    With *second*, there is another, independent broker, and clients have a list of two URLs.
    """

    def __init__(self, *, second: bool = False) -> None:
        self._stack = ExitStack()
        self.second = RedisServer(appendonly=True) if second else None
        if self.second is not None:
            self._stack.callback(self.second.destroy)
            self.second.start()
        self.primary = RedisServer(appendonly=True)
        self._stack.callback(lambda: [server.destroy() for server in (self.primary, self.replica)])
        self.replica = RedisServer(appendonly=True, replica_of=self.primary)
        self.primary.start()
        self.replica.start()
        self.proxy = Proxy(free_port(), ("127.0.0.1", self.primary.port))
        self.proxy.start()
        self._stack.callback(self.proxy.stop)

    def __enter__(self) -> Broker:  # noqa: PYI034 - typing.Self needs Python 3.11
        """Return self."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the servers and the proxy."""
        self._stack.close()

    @property
    def servers(self) -> list[RedisServer]:
        """All servers, whatever their current roles."""
        return [self.primary, self.replica, *([self.second] if self.second else [])]

    def url(self, scheme: str) -> str:
        """Return the URL for clients."""
        url = f"{scheme}://127.0.0.1:{self.proxy.port}/0"
        return url if self.second is None else f"{url};{self.second.url(scheme)}"

    @property
    def options(self) -> dict[str, object]:
        """The transport options that the URL needs."""
        return {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment that its clients need."""
        return {}

    def wait_failover(self, old: RedisServer) -> RedisServer:
        """Wait until another server than *old* is the master."""
        raise NotImplementedError

    @property
    def in_charge(self) -> list[RedisServer]:
        """The servers that hold messages: the first broker's master, and the second broker."""
        return [self.primary] if self.second is None else [self.primary, self.second]

    def views(self) -> Iterator[View]:
        """Yield a direct view of each broker."""
        for number, server in enumerate(self.in_charge):
            where = "second broker: " if number else ""
            yield View(where, server.url("reliq"), server.client)

    def unexplained(self, client: redis.Redis) -> list[str]:
        """Return descriptions of unexplained keys of an idle broker."""
        return keys.unexplained(client)

    def keep_logs(self, directory: Path) -> None:
        """Save the logs of the servers."""
        for server in self.servers:
            (directory / f"server-{server.port}.txt").write_text(server.log(), encoding="utf-8")

    def missing(self) -> str:
        """Return the reason why its servers are not a complete group; "" if they are."""
        return ""

    def by_itself(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return events at the broker that are not among *faults*."""
        return []

    def client(self) -> redis.Redis:
        """Return a client of the current master, without the proxy."""
        return self.primary.client()

    def clients(self) -> list[redis.Redis]:
        """Return a client of each server that holds messages and is subject to faults."""
        return [self.client()]

    def demote(self) -> None:
        """Make the server a replica of an unreachable master: it refuses writes."""
        with self.client() as client:
            client.replicaof(*map(str, _NOWHERE))

    def promote(self) -> None:
        """Make the server a master again."""
        with self.client() as client:
            client.replicaof("NO", "ONE")

    def replica_ready(self, timeout_s: float) -> bool:
        """Wait up to *timeout_s*; return whether the replica is in sync with the server."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with self.replica.client() as client:
                    if client.info("replication").get("master_link_status") == "up":
                        return True
            except redis.RedisError:
                pass
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)

    def switch_over(self) -> bool:
        """Hand over to the synced replica (FAILOVER) and send clients there; False if refused."""
        if not self.replica_ready(3.0):
            return False
        with self.client() as client:
            try:
                client.execute_command("FAILOVER", "TIMEOUT", "3000")
            except redis.ResponseError:
                return False
            except redis.ConnectionError:
                pass  # it may close the connection at once; the result is checked below

            seen: list[object] = []

            def role() -> str | None:
                try:
                    state = client.info("replication")
                except redis.ConnectionError as exc:  # it may disconnect as it becomes a replica
                    seen[:] = [exc]
                    return None if self.primary.running else "crashed"
                seen[:] = [state]
                return state["role"] if state["master_failover_state"] == "no-failover" else None

            def stuck() -> str:
                logs = (self.primary.log(), self.replica.log())
                ends = ["\n".join(log.splitlines()[-30:]) for log in logs]
                return "the failover: " + "\n".join(map(str, (*seen, *ends)))

            became = wait_until(role, timeout_s=30, interval_s=0.02, what=stuck)
            if became == "crashed":
                return self._after_a_crash()
            if became == "master":
                return False
        self._swap()
        return True

    def _after_a_crash(self) -> bool:
        """Start a server that crashed by an assertion during the handover, as after an outage.

        Redis 7.0.15 did this. Its confirmed data is on disk, as after a kill.
        """
        print("\n".join(x for x in self.primary.log().splitlines() if "==>" in x or "ASSERT" in x))
        self.primary.start()
        with self.replica.client() as replica:
            handed_over = replica.info("replication")["role"] == "master"
        if handed_over:
            with self.client() as client:
                client.replicaof("127.0.0.1", str(self.replica.port))
            self._swap()
        return True

    def _swap(self) -> None:
        """Send clients to the replica, which is now the master."""
        old, new = self.primary, self.replica
        old.replica_of, new.replica_of = new, None
        self.primary, self.replica = new, old
        # Existing connections still lead to the old server, which replies READONLY.
        self.proxy.target = ("127.0.0.1", new.port)
