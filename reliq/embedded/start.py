"""Starting the broker of a folder where it does not run: :func:`ensure`, on every connect."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import BrokerUnavailable, ConfigurationError
from .folder import boot_id
from .keeper import STARTS_WITHIN_S, Talk, write
from .server import find, memory_limit, require_whole

if TYPE_CHECKING:
    from ..options import Options
    from .folder import Folder

_logger = logging.getLogger(__package__)
# Of the environment, only variables that begin so go to the server, without it: for tests.
_FOR_SERVER = "RELIQ_EMBEDDED_ENV_"
# In the environment of a keeper: what is started as one and connects starts no other.
_GUARD = "RELIQ_EMBEDDED_KEEPER"
# For so long a process waits for another that is starting a keeper.
_WAITS_S = 1.0
_ANOTHER_IS_THERE = 3
# By path: the folder that this process has used there.
_known: dict[str, tuple[int, int]] = {}


class Wishes(NamedTuple):
    """The options of one process. None: whatever there is."""

    fsync: str = "second"
    idle: float = 60.0
    maxmemory: int | None = None
    server: str | None = None


def wishes_of(options: Options) -> Wishes:
    """Return the wishes in transport options."""
    server = options.embedded_server
    return Wishes(
        options.embedded_fsync,
        options.embedded_idle,
        options.embedded_maxmemory,
        None if server is None else str(Path(server).expanduser().absolute()),
    )


def ensure(folder: Folder, wishes: Wishes) -> None:
    """Return when a server listens in *folder*, watched by a keeper; start what is missing.

    Raises ConfigurationError, and BrokerUnavailable with the last words of a server that failed.
    """
    found = folder.require(create=True)
    here = (found.st_dev, found.st_ino)
    if _known.setdefault(folder.path, here) != here:
        _known[folder.path] = here
        _logger.warning("%s: the folder was removed or replaced; another broker begins", folder)
    state = folder.keeper()
    if state is None or "since" not in state or not _listens(folder):
        state = _start(folder, wishes)
    _agree(folder, state, wishes)


def _listens(folder: Folder) -> bool:
    """Whether a server accepts a connection, however busy it is."""
    try:
        with folder.socket() as path, Talk(path):
            return True
    except BlockingIOError:
        return True  # so many wait at its door
    except OSError as exc:
        return isinstance(exc, TimeoutError)


def _start(folder: Folder, wishes: Wishes) -> dict[str, Any]:
    """Start a keeper unless another process does; return its state when the server listens."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    began, descriptor, mine = time.monotonic(), folder.open("start.lock", os.O_RDWR | os.O_CREAT), 0
    try:
        while True:
            state = folder.keeper()
            # No state before its server listens: the socket may be one that was left behind.
            if state is not None and "since" in state and _listens(folder):
                return state
            folder.raise_remembered()
            if time.monotonic() > deadline:
                raise folder.remember(f"no server within {STARTS_WITHIN_S:g} s")
            if not mine:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    mine = 1
            if state is None and (mine or time.monotonic() - began > _WAITS_S):
                start_keeper(folder, wishes)
            time.sleep(0.003)
    finally:
        os.close(descriptor)


def start_keeper(folder: Folder, wishes: Wishes) -> None:
    """Start a keeper; return when it, or another one, holds the lock."""
    if os.environ.get(_GUARD):
        raise ConfigurationError(
            f"{folder}: this program was started as the keeper of a broker, for which a Python "
            "was taken: put python3 on PATH"
        )
    server = find(folder, wishes.server)
    with suppress(FileNotFoundError), folder.socket():
        pass  # a server would put its own in the place of what is there
    if folder.state_of("server.lock") is None:
        require_whole(folder, server)
    maxmemory = wishes.maxmemory or memory_limit()
    config = {
        "folder": folder.path,
        "binary": server.path,
        "server": server.name,
        "version": server.version,
        "fsync": wishes.fsync,
        "idle": wishes.idle,
        "maxmemory": maxmemory,
        "boot": boot_id(),
        "by": f"process {os.getpid()} ({Path(sys.argv[0]).name if sys.argv else ''})",
        "settings": _settings(wishes, maxmemory),
        "env": {
            name[len(_FOR_SERVER) :]: value
            for name, value in os.environ.items()
            if name.startswith(_FOR_SERVER)
        },
    }
    command, program = [_python(folder), "-I", "-S", "-", json.dumps(config)], _program(folder)
    kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # without them some Pythons do not start
    environment = {name: os.environ[name] for name in kept if name in os.environ} | {_GUARD: "1"}
    log = folder.open("broker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        with subprocess.Popen(  # noqa: S603 - this package's own program
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        ) as process:
            process.communicate(program)
    except OSError as exc:
        raise folder.remember(f"the keeper cannot be started: {exc}") from exc
    finally:
        os.close(log)
    if process.returncode not in {0, _ANOTHER_IS_THERE}:
        folder.raise_remembered()
        raise folder.remember(f"the keeper has ended with {process.returncode}")
    if process.returncode == 0:
        _logger.info(
            "%s: started with %s by this process (%d); its log: %s",
            folder,
            server,
            os.getpid(),
            folder.at("broker.log"),
        )


def _settings(wishes: Wishes, maxmemory: int) -> str:
    """Return the configuration of the server: no path is in it."""
    return (
        "port 0\nunixsocket broker.sock\nunixsocketperm 700\ndaemonize no\n"
        'save ""\nappendonly yes\nauto-aof-rewrite-min-size 8mb\n'
        f"appendfsync {'always' if wishes.fsync == 'always' else 'no'}\n"
        f"maxmemory {maxmemory}\nmaxmemory-policy noeviction\n"
    )


def _program(folder: Folder) -> bytes:
    with suppress(OSError):
        if program := pkgutil.get_data(__package__ or "", "keeper.py"):
            return program
    raise ConfigurationError(
        f"{folder}: this program holds reliq without its text embedded/keeper.py: bundle that "
        "file as data, or start the broker before: reliq embedded run"
    )


def _python(folder: Folder) -> str:
    """Return a Python that is one: the program may be uWSGI, or the application itself."""
    found: list[str | None] = []
    if not getattr(sys, "frozen", False):
        found += [sys.executable, getattr(sys, "_base_executable", None)]
        found += [os.path.join(place, "bin/python3") for place in (sys.prefix, sys.base_prefix)]  # noqa: PTH118
    found += [shutil.which("python3"), shutil.which("python")]
    for path in found:
        named = path and re.fullmatch(r"(python|pypy)[\d.]*[a-z]?", Path(path).name)
        if path and named and os.access(path, os.X_OK):
            return path
    raise ConfigurationError(
        f"{folder}: no Python to run the keeper with was found ({sys.executable!r} is none): put "
        "python3 on PATH, or start the broker before: reliq embedded run"
    )


def _agree(folder: Folder, state: dict[str, Any], wishes: Wishes) -> None:
    """Refuse options that contradict the broker's; let the stronger of others hold."""
    for name, wanted, there in (
        ("embedded_maxmemory", wishes.maxmemory, state.get("maxmemory")),
        ("embedded_server", wishes.server, state.get("binary")),
    ):
        if wanted is not None and there is not None and wanted != there:
            raise ConfigurationError(
                f"{folder}: expected {name} to be that of the broker that runs, {there!r}, got: "
                f"{wanted!r}; give all processes the same, or stop it: reliq embedded stop"
            )
    idle = state.get("idle", wishes.idle)
    stronger = wishes.fsync == "always" and state.get("fsync", "always") != "always"
    if not stronger and (idle == 0 or 0 < wishes.idle <= idle):
        return
    longer = 0 if 0 in {idle, wishes.idle} else max(idle, wishes.idle)
    fsync = "always" if stronger else state.get("fsync")
    if stronger:
        try:
            with folder.socket() as path, Talk(path) as talk:
                reply = talk.ask("CONFIG", "SET", "appendfsync", "always").decode()
        except OSError as exc:
            raise BrokerUnavailable(f"{folder}: {exc}") from exc
        if reply != "+OK":
            error = BrokerUnavailable(f"{folder} cannot serve now: {reply}")
            error.reply = reply
            raise error
    with suppress(OSError):  # the disk may be full
        write(folder.at("wishes"), {"fsync": fsync, "idle": longer})
