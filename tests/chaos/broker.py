"""The broker of a run: a server, its replica, and a proxy in front of whichever is in charge."""

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

_NOWHERE = ("127.0.0.1", 1)  # nobody listens there.


class View(NamedTuple):
    """One broker, past the proxy."""

    where: str
    """What a finding there begins with."""
    url: str
    client: Callable[[], redis.Redis]


class Broker:
    """Two servers that sync every write to disk; clients see one address, the proxy's.

    With *second* there is another broker, of which the first knows nothing: clients have
    a list of two URLs.
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
        """All servers, whatever they are at the moment."""
        return [self.primary, self.replica, *([self.second] if self.second else [])]

    def url(self, scheme: str) -> str:
        """Return what clients connect to."""
        url = f"{scheme}://127.0.0.1:{self.proxy.port}/0"
        return url if self.second is None else f"{url};{self.second.url(scheme)}"

    @property
    def options(self) -> dict[str, object]:
        """The transport options that the URL needs."""
        return {}

    def wait_failover(self, old: RedisServer) -> RedisServer:
        """Wait until another server than *old* is in charge."""
        raise NotImplementedError

    @property
    def in_charge(self) -> list[RedisServer]:
        """The servers that hold messages: the first broker's, and the second broker."""
        return [self.primary] if self.second is None else [self.primary, self.second]

    def views(self) -> Iterator[View]:
        """Yield each of the brokers, as who looks at it from outside sees it."""
        for number, server in enumerate(self.in_charge):
            where = "second broker: " if number else ""
            yield View(where, server.url("reliq"), server.client)

    def unexplained(self, client: redis.Redis) -> list[str]:
        """Return the keys of a broker at rest that nothing explains, in words."""
        return keys.unexplained(client)

    def keep_logs(self, directory: Path) -> None:
        """Copy what the servers have said."""
        for server in self.servers:
            (directory / f"server-{server.port}.txt").write_text(server.log(), encoding="utf-8")

    def missing(self) -> str:
        """Return what its servers miss to be a whole group; nothing when they are one."""
        return ""

    def by_itself(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return what has befallen the broker that is none of *faults*."""
        return []

    def client(self) -> redis.Redis:
        """Return a client of the server in charge, past the proxy."""
        return self.primary.client()

    def clients(self) -> list[redis.Redis]:
        """Return a client of each server that is in charge of messages and that faults hit."""
        return [self.client()]

    def demote(self) -> None:
        """Make the server a replica of nobody: it refuses writes."""
        with self.client() as client:
            client.replicaof(*map(str, _NOWHERE))

    def promote(self) -> None:
        """Let it serve again."""
        with self.client() as client:
            client.replicaof("NO", "ONE")

    def replica_ready(self, timeout_s: float) -> bool:
        """Whether the replica is in step with the server, waiting a little for it."""
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
        """Hand over to the replica, in step (FAILOVER), and send clients there; False: refused."""
        if not self.replica_ready(3.0):
            return False
        with self.client() as client:
            try:
                client.execute_command("FAILOVER", "TIMEOUT", "3000")
            except redis.ResponseError:
                return False
            except redis.ConnectionError:
                pass  # it may hang up at once; what has become of it is asked for below

            seen: list[object] = []

            def role() -> str | None:
                try:
                    state = client.info("replication")
                except redis.ConnectionError as exc:  # it may hang up as it becomes a replica
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
        """Start a server that failed an assertion of its own as it handed over: an outage.

        Redis 7.0.15 was seen to do so. What it confirmed is on its disk, as after a kill.
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
        """Send clients to the replica, which is the master now."""
        old, new = self.primary, self.replica
        old.replica_of, new.replica_of = new, None
        self.primary, self.replica = new, old
        # Present connections still lead to the old one, which answers READONLY.
        self.proxy.target = ("127.0.0.1", new.port)
