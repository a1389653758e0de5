"""A real Sentinel group: one master, its replicas, and three Sentinels that monitor them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.processes import Process
from tests.support.servers import RedisServer, free_port, redis_binary
from tests.support.waiting import wait_until

MASTER_NAME = "shop"
# Silence after which a master counts as down: short, so that a test sees a failover in seconds, and
# long enough for a busy machine.
DOWN_AFTER_MS = 1000


class SentinelGroup:
    """One master with two replicas, monitored by three Sentinels that fail it over.

    *servers*: further arguments for each :class:`RedisServer`.
    """

    def __init__(
        self,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        password: str | None = None,
        sentinel_password: str | None = None,
        down_after_ms: int = DOWN_AFTER_MS,
        **servers: Any,
    ) -> None:
        self.down_after_ms = down_after_ms
        self._options = {"password": password, **servers}
        self.password = password
        self.sentinel_password = sentinel_password
        self.directory = Path(tempfile.mkdtemp(prefix="reliq-sentinel-"))
        first = RedisServer(**self._options)
        self.servers = [first]
        self._replicas = replicas
        self.ports: list[int] = []
        self._sentinels: list[Process] = []
        self._count = sentinels

    # -- life ---------------------------------------------------------------

    def start(self) -> SentinelGroup:
        """Start all processes; return when every Sentinel knows its peers and the replicas."""
        first = self.servers[0].start()
        for _ in range(self._replicas):
            replica = RedisServer(replica_of=first, **self._options)
            self.servers.append(replica)
            replica.start()
        for replica in self.servers[1:]:
            replica.wait_synced()
        for _ in range(self._count):
            self._start_sentinel(first)
        wait_until(self._complete, timeout_s=40, what=self._incomplete)
        return self

    def destroy(self) -> None:
        """Kill all processes and delete their data."""
        for process in self._sentinels:
            process.thaw()
            process.kill_group()
        for server in self.servers:
            server.thaw()
            server.destroy()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill_sentinel(self, number: int) -> None:
        """SIGKILL one of the Sentinels."""
        self._sentinels[number].kill_group()

    def freeze_sentinel(self, number: int) -> None:
        """SIGSTOP one of the Sentinels."""
        self._sentinels[number].freeze()

    # -- access -------------------------------------------------------------

    def url(self, scheme: str = "reliq-sentinel", db: int = 0) -> str:
        """Return the URL of all Sentinels."""
        user = f":{quote(self.password, safe='')}@" if self.password else ""
        return ";".join(f"{scheme}://{user}127.0.0.1:{port}/{db}" for port in self.ports)

    @property
    def options(self) -> dict[str, object]:
        """The transport options that the URL needs."""
        options: dict[str, object] = {"master_name": MASTER_NAME}
        if self.sentinel_password:
            options["sentinel_password"] = self.sentinel_password
        return options

    def master(self) -> RedisServer:
        """Return the server on which the running Sentinels agree."""
        found = set()
        for number, port in enumerate(self.ports):
            if self._sentinels[number].running:
                with self._client(port) as client:
                    reply = client.execute_command(
                        "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME
                    )
                    found.add(int(reply[1]))
        assert len(found) == 1, f"the Sentinels disagree: {found}"
        port = found.pop()
        return next(server for server in self.servers if server.port == port)

    def wait_failover(self, old: RedisServer, timeout_s: float = 40.0) -> RedisServer:
        """Wait until another server than *old* is the master, and reports that role itself."""

        def failed_over() -> RedisServer | None:
            try:
                new = self.master()
            except (AssertionError, redis.RedisError):
                return None
            if new is old or role_of(new) != "master":
                return None
            return new

        found = wait_until(failed_over, timeout_s=timeout_s, what="another master")
        assert found is not None
        return found

    def missing(self) -> str:
        """Return the reason why the group is incomplete; "" if it is complete.

        In a complete group, all servers respond, both replicas are in sync with the master, and
        each Sentinel knows it.
        """
        try:
            said = [self._say(port) for port in self.ports]
            if wrong := next((wrong for _, wrong in said if wrong), ""):
                return wrong
            if len({master for master, _ in said}) != 1:
                return "the Sentinels name several masters"
            master = next(server for server in self.servers if server.port == said[0][0])
            written = int(ask(master, "INFO", "replication")["master_repl_offset"])
            for server in self.servers:
                if wrong := _out_of_step(server, master, written, self._replicas):
                    return wrong
        except redis.RedisError as exc:
            return str(exc)
        return ""

    def _say(self, port: int) -> tuple[int, str]:
        """Return the port of the master that a Sentinel knows, and a problem that it reports."""
        with self._client(port) as client:
            master = client.sentinel_master(MASTER_NAME)
            replicas = client.sentinel_slaves(MASTER_NAME)
        wrong = "" if master["flags"] == "master" else f"the master is {master['flags']}"
        for one in replicas:
            if one["flags"] != "slave" or one["master-link-status"] != "ok":
                wrong = f"{one['name']} is {one['flags']}, its link {one['master-link-status']}"
        if len(replicas) != self._replicas:
            wrong = f"{len(replicas)} replicas are known"
        return int(master["port"]), wrong and f"by Sentinel {port} {wrong}"

    def wait_for_replies(self) -> None:
        """Prevent failovers from now on: on a busy machine, a master may respond slowly."""
        self._down_after(600_000)

    def watch(self) -> None:
        """Enable failovers again when the master does not respond."""
        self._down_after(self.down_after_ms)

    def _down_after(self, milliseconds: int) -> None:
        for port in self.ports:
            with self._client(port) as client:
                client.execute_command(
                    "SENTINEL", "SET", MASTER_NAME, "down-after-milliseconds", str(milliseconds)
                )

    def log(self) -> str:
        """Return the logs of the Sentinels."""
        return "\n".join(process.tail(100) for process in self._sentinels)

    # -- inside -------------------------------------------------------------

    def _incomplete(self) -> str:
        return f"Sentinels that know each other: {self.missing()}\n{self.log()}"

    def _start_sentinel(self, master: RedisServer) -> None:
        port, process = self._run_sentinel(master)
        wait_until(lambda: self._answers(port) or not process.running)
        if not process.running and "already in use" in process.tail():
            self._start_sentinel(master)  # another process was faster to take the port
            return
        self.ports.append(port)
        self._sentinels.append(process)

    def _answers(self, port: int) -> bool:
        try:
            with self._client(port) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def _run_sentinel(self, master: RedisServer) -> tuple[int, Process]:
        port = free_port()
        path = self.directory / f"{port}.conf"
        lines = [
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {MASTER_NAME} 127.0.0.1 {master.port} {self._count // 2 + 1}",
            f"sentinel down-after-milliseconds {MASTER_NAME} {self.down_after_ms}",
            f"sentinel failover-timeout {MASTER_NAME} 10000",
            f"sentinel parallel-syncs {MASTER_NAME} 2",
        ]
        if self.password:
            lines.append(f"sentinel auth-pass {MASTER_NAME} {self.password}")
        if self.sentinel_password:
            lines.append(f"requirepass {self.sentinel_password}")
            lines.append(f"sentinel sentinel-pass {self.sentinel_password}")
        path.write_text("\n".join(lines) + "\n", encoding="ascii")
        command = [redis_binary(), path, "--sentinel"]
        return port, Process(command, log_path=self.directory / f"{port}.log")

    def _client(self, port: int) -> redis.Redis:
        return redis.Redis(
            host="127.0.0.1",
            port=port,
            password=self.sentinel_password,
            socket_timeout=2,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )

    def _complete(self) -> bool:
        for port in self.ports:
            try:
                with self._client(port) as client:
                    flat = client.execute_command("SENTINEL", "MASTER", MASTER_NAME)
            except redis.RedisError:
                return False
            state = (
                flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
            )
            others = int(state["num-other-sentinels"])
            if others != self._count - 1 or int(state["num-slaves"]) != self._replicas:
                return False
        return True


def ask(server: RedisServer, *command: str) -> Any:
    """Send one command to a server; raises redis.RedisError after a second without a reply."""
    client = redis.Redis(
        host="127.0.0.1",
        port=server.port,
        password=server.password,
        socket_timeout=1,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
    )
    with client:
        return client.execute_command(*command)


# Bytes in transit to a replica under load.
_IN_FLIGHT_BYTES = 65_536


def _out_of_step(server: RedisServer, master: RedisServer, written: int, replicas: int) -> str:
    info = ask(server, "INFO", "replication")
    name = f"{server.port} of the master {master.port}"
    if server is master:
        states = [info[f"slave{number}"]["state"] for number in range(info["connected_slaves"])]
        whole = info["role"] == "master" and states == ["online"] * replicas
        return "" if whole else f"{name}: {info['role']} with replicas {states}"
    if info["role"] != "slave" or int(info["master_port"]) != master.port:
        return f"{name}: {info['role']} of {info.get('master_port')}"
    if info["master_link_status"] != "up":
        return f"{name}: its link is {info['master_link_status']}"
    behind = written - int(info["slave_repl_offset"])
    return f"{name}: {behind} bytes behind" if behind > _IN_FLIGHT_BYTES else ""


def role_of(server: RedisServer) -> str:
    """Return the role that a server reports, master or slave; "" if it does not respond."""
    try:
        return str(ask(server, "INFO", "replication")["role"])
    except redis.RedisError:
        return ""
