"""What an operator does to the folder of an embedded broker: look, run, stop, repair, copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BrokerRefused, BrokerUnavailable, ConfigurationError
from .keeper import Talk, lock, logs, sync
from .server import find, manifest_names, require_whole, stamp_of
from .start import Wishes, ensure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .folder import Folder

_STOPS_WITHIN_S = 30.0
_COPIES = 5
_MANIFEST = "appendonlydir/appendonly.aof.manifest"


@dataclass(frozen=True)
class Status:
    """What is known of the broker in a folder; None: not known, or it does not run."""

    running: bool
    uptime_s: int | None
    started_by: str | None
    server: str | None
    version: str | None
    clients: int | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    disk_bytes: int
    disk_free_bytes: int
    fsync: str | None
    idle_s: float | None
    pid: int | None
    nice: int | None
    cgroup: str | None
    log: str
    last_error: str | None
    last_error_at: float | None


def status(folder: Folder) -> Status:
    """Return what is known of the broker; starts nothing. Raises ConfigurationError."""
    folder.require(create=False)
    state, info = folder.keeper() or {}, dict[str, str]()
    with suppress(OSError):
        info = _info(folder)
    wrote, failure = {**stamp_of(folder), **state}, folder.last_failure()
    pid = int(info.get("process_id", 0))
    return Status(
        folder.state_of("server.lock") is not None,
        _number(info.get("uptime_in_seconds")),
        state.get("by"),
        wrote.get("server"),
        ".".join(map(str, wrote.get("version", ()))) or None,
        _number(info.get("connected_clients")),
        _number(info.get("used_memory")),
        state.get("maxmemory"),
        sum(Path(path).stat().st_size for path in logs(folder.path)),
        shutil.disk_usage(folder.path).free,
        state.get("fsync"),
        state.get("idle"),
        pid or None,
        os.getpriority(os.PRIO_PROCESS, pid) if pid else None,
        _cgroup(pid),
        folder.at("broker.log"),
        failure.get("text"),
        failure.get("at"),
    )


def _info(folder: Folder) -> dict[str, str]:
    with folder.socket() as path, Talk(path) as talk:
        talk.clients()  # it names the connection: that looking is no use
        text = talk.ask("INFO").decode("utf-8", "replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _cgroup(pid: int) -> str | None:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/cgroup").read_text("utf-8").splitlines()
        return next((line for line in lines if line.startswith("0::") or ":memory:" in line), None)
    return None


def run(folder: Folder, wishes: Wishes, stopped: Callable[[float], object]) -> None:
    """Keep the broker running until *stopped*, which waits so many seconds, says so; end it."""
    try:
        while not stopped(0):
            with suppress(BrokerUnavailable):  # it is tried again after its pause
                ensure(folder, wishes)
            stopped(1)
    finally:
        stop(folder)


def stop(folder: Folder) -> bool:
    """End the broker; False where none runs. Raises BrokerUnavailable where it does not end."""
    folder.require(create=False)
    folder.keeper()  # not one of another machine
    deadline, said, ran = time.monotonic() + _STOPS_WITHIN_S, "it does not answer", False
    while folder.state_of("keeper.lock") is not None or folder.state_of("server.lock") is not None:
        ran = True
        try:
            with folder.socket() as path, Talk(path) as talk:
                said = talk.ask("SHUTDOWN").decode("utf-8", "replace")
        except OSError:
            pass  # it begins, or ends
        if time.monotonic() > deadline:
            raise BrokerUnavailable(f"{folder}: it has not ended: {said}. {folder.remedy()}")
        time.sleep(0.02)
    return ran


def repair(folder: Folder, given: str | None = None) -> tuple[str, str]:
    """Mend the data of a broker that does not open; return where the copy is, and what was said.

    What cannot be read at the end of the log is cut off. Raises BrokerRefused while it runs.
    """
    folder.require(create=False)
    held = [lock(folder.at(name), 0.1) for name in ("keeper.lock", "server.lock")]
    try:
        if None in held:
            raise BrokerRefused(f"{folder}: it runs: reliq embedded stop {folder.path}")
        server = find(folder, given)
        copy = folder.at(time.strftime("before-repair-%Y%m%d-%H%M%S"))
        _copy(folder, copy)
        said = [*_mend_manifest(folder)]
        # Not by the manifest: valkey-check-aof takes a base file of its own for damaged.
        names = manifest_names(folder)
        target = folder.at(f"appendonlydir/{names[-1]}" if names else "appendonly.aof")
        done = subprocess.run(  # noqa: S603 - the server, under the name of its tool
            [server.checker, "--fix", target],
            executable=server.path,
            input="y\n",
            capture_output=True,
            text=True,
            check=False,
        )
        said += [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        if done.returncode:
            raise BrokerRefused(
                f"{folder}: it cannot be mended: {' | '.join(said[-3:])}; what there was is in "
                f"{copy}"
            )
        require_whole(folder, server)
        for path in logs(folder.path):
            sync(path)
        Path(folder.at("failure")).unlink(missing_ok=True)
    finally:
        for descriptor in filter(None, held):
            os.close(descriptor)
    return copy, "\n".join(said)


def _mend_manifest(folder: Folder) -> Iterator[str]:
    """Write a manifest of the files that are there, where it is missing, empty or wrong."""
    place = Path(folder.at("appendonlydir"))
    there = {path.name for path in place.iterdir()} if place.is_dir() else set()
    names = manifest_names(folder)
    if not there or (names and set(names) <= there):
        return
    found: dict[str, list[tuple[int, str]]] = {"b": [], "i": []}
    for name in there:
        if match := re.fullmatch(r"appendonly\.aof\.(\d+)\.(base|incr)\.(?:rdb|aof)", name):
            found[match[2][0]].append((int(match[1]), name))
    if len(found["b"]) > 1 or not (found["b"] or found["i"]):
        raise BrokerRefused(
            f"{folder}: which files belong together cannot be told from {sorted(there)}: write "
            f"{folder.at(_MANIFEST)} by hand, or take a backup"
        )
    rows = ((kind, *item) for kind in "bi" for item in sorted(found[kind]))
    text = "".join(f"file {name} seq {number} type {kind}\n" for kind, number, name in rows)
    path = Path(folder.at(_MANIFEST))
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    lost = ", ".join(set(names or ()) - there)
    yield f"wrote the manifest anew, of what is there{lost and '; lost: '}{lost}"


def backup(folder: Folder, to: str) -> int:
    """Copy the data into a new folder *to*, which opens as a broker; return its bytes.

    While the broker runs, too: the copy is what it held at one moment.
    """
    folder.require(create=False)
    place = Path(to)
    if place.exists():
        raise ConfigurationError(f"expected a path where nothing is yet, got: {to!r}")
    for _ in range(_COPIES):
        before = manifest_names(folder)
        with suppress(FileNotFoundError):  # a rewrite of the log has ended meanwhile
            _copy(folder, to)
            if manifest_names(folder) == before:
                return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        shutil.rmtree(to, ignore_errors=True)
    raise BrokerUnavailable(f"{folder}: it rewrites its log all the time; try again")


def _copy(folder: Folder, to: str) -> None:
    place = Path(to)
    place.mkdir(0o700)
    for path in (*logs(folder.path), folder.at("stamp")):
        target = place / Path(path).relative_to(folder.path)
        if Path(path).exists() or path.startswith(folder.at("appendonlydir")):
            target.parent.mkdir(0o700, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o600)
            sync(str(target))
    sync(to)
