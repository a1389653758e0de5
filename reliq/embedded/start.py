"""Starting the broker of a folder where it does not run: :func:`ensure`, on every connect."""

from __future__ import annotations

import json
import logging
import os
import pkgutil
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BrokerUnavailable, ConfigurationError, again
from .folder import boot_id
from .keeper import ask, lock
from .server import find, memory_limit, require_whole

if TYPE_CHECKING:
    from ..options import Options
    from .folder import Folder

STARTS_WITHIN_S = 30.0
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
    found = folder.require(create=True)
    here = (found.st_dev, found.st_ino)
    if _known.setdefault(folder.path, here) != here:
        _known[folder.path] = here
        _logger.warning("%s: the folder was removed or replaced; another broker begins", folder)
    state = folder.keeper()
    if not _is_ready(folder, state):
        state = _start(folder, options)
    _agree(folder, state or {}, options)


def _is_ready(folder: Folder, state: dict[str, Any] | None) -> bool:
    """Whether a server accepts connections, however busy it is, and a keeper is there."""
    if state is None or "since" not in state:
        return False
    try:
        with folder.socket() as path, socket.socket(socket.AF_UNIX) as door:
            door.settimeout(2)
            door.connect(path)
    except OSError as exc:
        return isinstance(exc, (BlockingIOError, TimeoutError))  # many wait at its door
    return True


def _start(folder: Folder, options: Options) -> dict[str, Any]:
    """Start a keeper unless another process does; return its state when the server listens."""
    deadline, turn = time.monotonic() + STARTS_WITHIN_S, folder.open("start.lock")
    try:
        lock(turn, _WAITS_S)  # without it another one is stopped, or waits for a long load
        while time.monotonic() < deadline:
            state = folder.keeper()
            if state is not None and _is_ready(folder, state):
                return state
            if state is None:
                folder.raise_remembered()
                _start_keeper(folder, options)
            time.sleep(0.003)
    finally:
        os.close(turn)
    raise BrokerUnavailable(f"{folder}: no server within {STARTS_WITHIN_S:g} s. {folder.remedy()}")


def _start_keeper(folder: Folder, options: Options) -> None:
    """Start a keeper; return when it, or another one, holds the lock."""
    if os.environ.get(_GUARD):
        raise ConfigurationError(
            f"{folder}: this program was started as the keeper of a broker, for which a Python "
            "was taken: put python3 on PATH"
        )
    server = find(folder, _server(options))
    with suppress(FileNotFoundError), folder.socket():
        pass  # a server would put its own in the place of what is there
    if not folder.read("server.lock")[1]:
        require_whole(folder)
    maxmemory = options.embedded_maxmemory or memory_limit()
    config = {
        "folder": folder.path,
        "arguments": _arguments(options.embedded_fsync, maxmemory),
        "state": {
            "boot": boot_id(),
            "by": f"process {os.getpid()} ({Path(sys.argv[0]).name if sys.argv else ''})",
            "binary": server.path,
            "server": server.name,
            "version": server.version,
            "maxmemory": maxmemory,
            "idle": options.embedded_idle,
        },
    }
    kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # without them some Pythons do not start
    log = folder.open("broker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        subprocess.run(  # noqa: S603 - this package's own program
            [_python(folder), "-I", "-S", "-", json.dumps(config)],
            input=_program(folder),
            stdout=log,
            stderr=log,
            env={name: os.environ[name] for name in kept if name in os.environ} | {_GUARD: "1"},
            start_new_session=True,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise folder.remember(f"the keeper cannot be started: {exc}") from exc
    finally:
        os.close(log)
    _logger.info(
        "%s: started with %s by this process (%d); its log: %s",
        folder,
        server,
        os.getpid(),
        folder.at("broker.log"),
    )


def _arguments(fsync: str, maxmemory: int) -> list[str]:
    """Return the configuration of the server: no path is in it."""
    appendfsync = "always" if fsync == "always" else "no"
    text = (
        "--port 0 --unixsocket broker.sock --unixsocketperm 700 --daemonize no --appendonly yes "
        f"--appendfsync {appendfsync} --auto-aof-rewrite-min-size 8mb --maxmemory {maxmemory} "
        "--maxmemory-policy noeviction --save"
    )
    return [*text.split(), ""]


def _server(options: Options) -> str | None:
    given = options.embedded_server
    return None if given is None else str(Path(given).expanduser().absolute())


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
        found += [f"{place}/bin/python3" for place in (sys.prefix, sys.base_prefix)]
    found += [shutil.which("python3"), shutil.which("python")]
    for path in filter(None, found):
        if re.search(r"/(python|pypy)[\d.]*[a-z]?$", path) and os.access(path, os.X_OK):
            return path
    raise ConfigurationError(
        f"{folder}: no Python to run the keeper with was found ({sys.executable!r} is none): put "
        "python3 on PATH, or start the broker before: reliq embedded run"
    )


def _agree(folder: Folder, state: dict[str, Any], options: Options) -> None:
    """Refuse options that contradict the broker's; let the stronger of others hold."""
    for name, wanted, there in (
        ("embedded_maxmemory", options.embedded_maxmemory, state.get("maxmemory")),
        ("embedded_server", _server(options), state.get("binary")),
    ):
        if wanted is not None and wanted != there:
            raise ConfigurationError(
                f"{folder}: expected {name} to be that of the broker that runs, {there!r}, got: "
                f"{wanted!r}; give all processes the same, or stop it: reliq embedded stop"
            )
    longest, idle = state.get("idle", 0), options.embedded_idle
    if longest and (not idle or idle > longest):
        folder.note(idle=idle)
    if options.embedded_fsync == "always":
        try:
            with folder.socket() as path:
                reply = ask(path, "CONFIG SET appendfsync always")
        except OSError as exc:
            raise BrokerUnavailable(f"{folder} is not reachable: {exc}") from exc
        if not reply.startswith(b"+OK"):
            error = BrokerUnavailable(f"{folder} cannot serve now: {reply.decode()}")
            error.reply = reply.decode()
            raise again(error)
