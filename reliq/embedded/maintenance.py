"""The operator's actions on the folder of an embedded broker: status, stop, repair, backup."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BrokerRefused, BrokerUnavailable, ConfigurationError
from ..options import parse
from ..units import duration, size
from .folder import Folder
from .keeper import ask, lock, logs, write_state
from .server import data_of, find, stamp_of
from .start import ensure

if TYPE_CHECKING:
    from collections.abc import Iterator

_STOPS_WITHIN_S = 30.0
_NO_DATA = shutil.ignore_patterns("broker.*", "*.lock", "before-repair-*")


def status(folder: Folder) -> Iterator[tuple[str, object]]:
    """Yield names and values of what is known; starts nothing. Raises ConfigurationError."""
    folder.require(create=False)
    state, info = folder.keeper() or folder.read("keeper.lock")[0], dict[str, str]()
    with suppress(OSError), folder.socket() as path:
        text = ask(path, "INFO").decode("utf-8", "replace")
        info = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    yield "running", "yes" if folder.read("server.lock")[1] else "no"
    if wrote := stamp_of(folder):
        yield "server", f"{wrote['server']} {'.'.join(map(str, wrote['version']))}"
    if info:
        pid = int(info.get("process_id", 0))
        yield "since", f"{duration(int(info['uptime_in_seconds']))}, by {state.get('by')}"
        yield "clients", int(info["connected_clients"]) - 2  # the keeper, and this one
        yield "memory", f"{size(int(info['used_memory']))} of {size(state.get('maxmemory'))}"
        with suppress(OSError):  # it may be in another container
            yield "nice", f"{os.getpriority(os.PRIO_PROCESS, pid)} (pid {pid})"
            yield "cgroup", Path(f"/proc/{pid}/cgroup").read_text("utf-8").split("\n")[0]
    data = sum(Path(path).stat().st_size for path in logs(folder.path))
    yield "disk", f"{size(data)}, {size(shutil.disk_usage(folder.path).free)} free"
    yield "log", folder.at("broker.log")
    if "failed" in state:
        yield "last error", f"{time.ctime(state['failed_at'])}: {state['failed']}"


def stop(folder: Folder) -> bool:
    """End the broker; False where none runs. Raises BrokerUnavailable where it does not end."""
    folder.require(create=False)
    deadline, said, ran = time.monotonic() + _STOPS_WITHIN_S, "it does not answer", False
    while folder.keeper() is not None or folder.read("server.lock")[1]:
        ran = True
        with suppress(OSError), folder.socket() as path:  # it begins, or ends
            said = ask(path, "SHUTDOWN").decode("utf-8", "replace")
        if time.monotonic() > deadline:
            raise BrokerUnavailable(f"{folder}: it has not ended: {said}. {folder.remedy()}")
        time.sleep(0.02)
    return ran


def repair(folder: Folder, given: str | None = None) -> tuple[str, str]:
    """Cut off the end of the log that cannot be read; return where the copy is, and the report.

    Raises BrokerRefused while the broker runs, and where files are missing.
    """
    folder.require(create=False)
    held = [folder.open(name) for name in ("keeper.lock", "server.lock")]
    try:
        if not all(lock(descriptor, 0.1) for descriptor in held):
            raise BrokerRefused(f"{folder}: it runs: reliq embedded stop {folder.path}")
        server, files = find(folder, given), data_of(folder)
        if lost := [path.name for path in files if not path.exists()] or not files:
            raise BrokerRefused(
                f"{folder}: it cannot be mended: {lost if files else 'the manifest'} is missing or "
                "empty: bring the file back from a backup, or list the files that are there in "
                f"{folder.at('appendonlydir/appendonly.aof.manifest')}, as 'file NAME seq 1 type b'"
                " (i for .incr.)"
            )
        copy = folder.at(time.strftime("before-repair-%Y%m%d-%H%M%S"))
        shutil.copytree(folder.path, copy, ignore=_NO_DATA)
        # Not by the manifest: valkey-check-aof takes a base file of its own for damaged.
        done = subprocess.run(  # noqa: S603 - the server, under the name of its tool
            [f"{server.name}-check-aof", "--fix", files[-1]],
            executable=server.path,
            input="y\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BrokerRefused(f"{folder}: it cannot be mended: {done.stdout}{done.stderr}")
        write_state(held[0], {})
    finally:
        for descriptor in held:
            os.close(descriptor)
    return copy, done.stdout


def backup(folder: Folder, to: str) -> int:
    """Copy the data into a new folder *to*, which opens as a broker; return its bytes.

    While the broker runs, too: the copy is what it held at one moment.
    """
    folder.require(create=False)
    if Path(to).exists():
        raise ConfigurationError(f"expected a path where nothing is yet, got: {to!r}")
    before = data_of(folder)
    try:
        shutil.copytree(folder.path, to, ignore=_NO_DATA)
        if before == data_of(folder):
            return sum(path.stat().st_size for path in Path(to).rglob("*") if path.is_file())
    except shutil.Error:
        pass  # a file is gone
    shutil.rmtree(to)
    raise BrokerUnavailable(f"{folder}: it was just rewriting its log; try again")


@contextmanager
def temporary() -> Iterator[Folder]:
    """Run a broker in a temporary folder. No process and no file stays."""
    folder = Folder(str(Path(tempfile.mkdtemp(prefix="reliq-")).resolve()))
    try:
        ensure(folder, parse({}))
        yield folder
    finally:
        try:
            stop(folder)
        finally:
            shutil.rmtree(folder.path)
