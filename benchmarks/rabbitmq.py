"""A private RabbitMQ node: loopback, free ports, and its own home, cookie and database."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import amqp

from .servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

START_WITHIN_S = 120.0
STOP_WITHIN_S = 20.0
WHAT_TO_INSTALL = "no rabbitmq-server found (Debian, Ubuntu: apt install rabbitmq-server)"
# The script itself: Debian's wrapper in PATH changes the user and reads /etc.
PLACES = ("/usr/lib/rabbitmq/bin", "/usr/local/sbin", "/opt/homebrew/sbin")
QUEUES = ("benchmark", "parked", "celery", *(f"benchmark-{number}" for number in range(200)))
EXCHANGES = ("benchmark",)
CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users.guest = true
disk_free_limit.absolute = 50MB
log.console = true
log.console.level = warning
log.file = false
"""


@dataclass(frozen=True)
class RabbitServer:
    """A running node, accessed as guest."""

    port: int

    def url(self, scheme: str) -> str:
        """Return the broker URL of the default virtual host."""
        return f"{scheme}://guest:guest@127.0.0.1:{self.port}//"

    def options(self) -> Mapping[str, Any]:
        """Return no options: the URL is sufficient."""
        return {}

    def describe(self) -> str:
        """Return the version that the node reports, and what it stores on disk."""
        with self._connect() as connection:
            version = connection.server_properties["version"]
        return (
            f"RabbitMQ {version}; one node, defaults: persistent messages go to disk; quorum "
            "queues sync messages before they confirm them"
        )

    def empty(self) -> None:
        """Delete every queue and exchange that a figure may have left."""
        with self._connect() as connection:
            channel = connection.channel()
            for name in QUEUES:
                channel.queue_delete(name)
            for name in EXCHANGES:
                channel.exchange_delete(name)

    def is_up(self) -> bool:
        """Return whether it accepts connections."""
        with suppress(OSError, amqp.AMQPError), self._connect():
            return True
        return False

    def _connect(self) -> amqp.Connection:
        connection = amqp.Connection(f"127.0.0.1:{self.port}", connect_timeout=5)
        connection.connect()
        return connection


def find() -> str | None:
    """Return the script that starts a node in the foreground."""
    for directory in PLACES:
        path = Path(directory) / "rabbitmq-server"
        if os.access(path, os.X_OK):
            return str(path)
    return shutil.which("rabbitmq-server")


@contextmanager
def started() -> Iterator[RabbitServer]:
    """Run a node with its own Erlang port mapper until the block ends."""
    executable, mapper = find(), shutil.which("epmd")
    if executable is None or mapper is None:
        raise RuntimeError(WHAT_TO_INSTALL)
    with tempfile.TemporaryDirectory(prefix="reliq-benchmark-", ignore_cleanup_errors=True) as name:
        home, port, mapper_port = Path(name), free_port(), free_port()
        environment = _environment(home, port, mapper_port)
        options: dict[str, Any] = {
            "env": environment,
            "cwd": home,
            "stdout": (home / "output").open("wb"),
            "stderr": subprocess.STDOUT,
            "start_new_session": True,
        }
        mapping = subprocess.Popen(
            [mapper, "-port", str(mapper_port), "-address", "127.0.0.1"], **options
        )
        node = subprocess.Popen([executable], **options)
        server = RabbitServer(port)
        try:
            _wait_until_up(server, node, home)
            yield server
        finally:
            _stop(node)
            _stop(mapping)
            options["stdout"].close()


def _environment(home: Path, port: int, mapper_port: int) -> dict[str, str]:
    cookie = home / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(20))
    cookie.chmod(0o400)
    (home / "rabbitmq.conf").write_text(CONFIGURATION.format(port=port))
    (home / "enabled_plugins").write_text("[].\n")
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper_port),
        "RABBITMQ_NODENAME": f"reliq-benchmark-{port}@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }


def _wait_until_up(server: RabbitServer, node: subprocess.Popen[bytes], home: Path) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while not server.is_up():
        if node.poll() is not None or time.monotonic() > deadline:
            said = (home / "output").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"RabbitMQ did not start, exit status {node.poll()}:\n{said}")
        time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and its children, which share its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
