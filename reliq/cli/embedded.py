"""``reliq embedded``: the commands for embedded brokers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from reliq.embedded import start
from reliq.embedded.folder import SCHEME, folder_of
from reliq.embedded.keeper import ask, free_space, lock, logs, open_own, write_state
from reliq.embedded.server import find, writer_of
from reliq.errors import BrokerUnavailable
from reliq.options import parse
from reliq.units import duration, size

from . import console as out
from .endings import Group, Refused, stop_event
from .options import json_option

if TYPE_CHECKING:
    from reliq.embedded.folder import Folder

_NUMBERS = ("process_id", "connected_clients", "uptime_in_seconds", "used_memory")
_SHOWN: dict[str, Any] = {
    **dict.fromkeys(("running", "refuses_messages"), {True: "yes", False: "no"}.get),
    **dict.fromkeys(("memory", "maxmemory", "disk", "free"), size),
    "uptime_s": duration,
    "error_at": time.ctime,
}
_NO_DATA = shutil.ignore_patterns("broker.*", "*.lock", "before-repair-*")


@click.group(cls=Group)
def embedded() -> None:
    """Inspect, run, stop, repair or copy an embedded broker (reliq-embedded:////FOLDER).

    Applications start the broker automatically, without these commands.
    """


def _folder_of(_context: object, _name: object, given: str) -> Folder:
    """Return the folder in a path or URL; a path may contain any bytes."""
    path = given.removeprefix(f"{SCHEME}:///")
    return folder_of(given if path == given else unquote(path, errors="surrogateescape"))


_folder = click.argument("folder", callback=_folder_of)
_server_option = click.option("--server", help="Path of a valkey-server or redis-server.")


@embedded.command()
@_folder
@json_option
def status(folder: Folder, as_json: bool) -> None:
    """Show whether the broker in FOLDER runs, and its memory, disk, clients and last error.

    The command neither starts the broker nor keeps it running.

    \b
    Example:
      reliq embedded status /var/lib/shop
    """
    folder.require(create=False)
    state, reply = folder.state(), ""
    with suppress(OSError), folder.socket() as path:
        reply = ask(path, "INFO").decode("utf-8", "replace")
    info = dict(line.split(":", 1) for line in reply.splitlines() if ":" in line)
    number = {name: int(info[name]) for name in _NUMBERS if name in info}
    pid, clients = number.get("process_id"), number.get("connected_clients")
    nice = cgroup = None
    with suppress(OSError):  # the process may be in another container
        if pid:
            nice = os.getpriority(os.PRIO_PROCESS, pid)
            cgroup = Path(f"/proc/{pid}/cgroup").read_text("utf-8").split("\n")[0]
    facts: dict[str, Any] = {
        "running": state["runs"],
        "server": writer_of(folder),
        "uptime_s": number.get("uptime_in_seconds"),
        "started_by": state.get("by"),
        "clients": clients and clients - 1,  # without this one
        "memory": number.get("used_memory"),
        "maxmemory": state.get("maxmemory"),
        "pid": pid,
        "nice": nice,
        "cgroup": cgroup,
        "disk": _size_of(folder.path),
        "free": free_space(folder.path),
        "refuses_messages": state["runs"] and bool(state.get("scarce")),
        "log": folder.at("broker.log"),
        "error": state.get("failed"),
        "error_at": state.get("failed_at"),
    }
    shown = ((name, value) for name, value in facts.items() if value is not None)
    lines = (f"{name:<16} {_SHOWN.get(name, str)(value)}" for name, value in shown)
    out.answer({**facts, "server": str(facts["server"] or "")}, as_json, lambda _: lines)


def _size_of(folder: str) -> int:
    """Return the bytes of the data files."""
    total = 0
    for path in logs(folder):
        with suppress(FileNotFoundError):  # removed by a rewrite of the log
            total += Path(path).stat().st_size
    return total


@embedded.command()
@_folder
@click.option("--maxmemory", help="Memory limit, such as 64MB.  [default: 256 MB, or a quarter]")
@click.option("--fsync", default="second", show_default=True, help="second or always.")
@_server_option
def run(folder: Folder, maxmemory: str | None, fsync: str, server: str | None) -> None:
    """Run the broker in FOLDER until SIGTERM or Ctrl-C, for systemd or a container.

    \b
    Example:
      reliq embedded run /var/lib/shop --maxmemory 500MB
    """
    given = {"maxmemory": maxmemory, "fsync": fsync, "idle": 0, "server": server}
    options = parse({f"embedded_{name}": value for name, value in given.items()})
    click.echo(f"running the broker in {folder.path}; log: {folder.at('broker.log')}", err=True)
    ended = stop_event()
    folder.require(create=True)
    with folder.translated(), open(open_own(folder.at("run.lock")), "rb") as held:  # noqa: PTH123
        while not ended.is_set():
            lock(held.fileno(), 0)  # another `run` may hold it
            with suppress(BrokerUnavailable):  # retry a second later
                start.ensure(folder, options)
            ended.wait(1)
        start.stop(folder)


@embedded.command()
@_folder
@json_option
def stop(folder: Folder, as_json: bool) -> None:
    """Stop the broker in FOLDER. The next connection of an application starts it again.

    The command refuses to stop a broker that `reliq embedded run` would start again.

    \b
    Example:
      reliq embedded stop /var/lib/shop
    """
    folder.require(create=False)
    if folder.read("run.lock")[1]:
        raise Refused(
            f"{folder}: `reliq embedded run` keeps the broker running: end that process instead, "
            "with SIGTERM or systemctl stop"
        )
    outcomes = {True: "stopped", False: "the broker was not running"}
    out.answer({"stopped": start.stop(folder)}, as_json, lambda row: [outcomes[row["stopped"]]])


@embedded.command()
@_folder
@_server_option
@json_option
def repair(folder: Folder, server: str | None, as_json: bool) -> None:
    """Repair data in FOLDER that the broker cannot open, for example after a power loss.

    The command first copies the data. It then cuts off the unreadable end of the log, and starts
    and stops the broker once to check the result.

    \b
    Example:
      reliq embedded repair /var/lib/shop
    """
    folder.require(create=False)
    lock_file = folder.at("keeper.lock")
    with folder.translated(), open(open_own(lock_file), "r+b") as held:  # noqa: PTH123 - no start
        if not lock(held.fileno()) or folder.read("server.lock")[1]:
            raise Refused(f"{folder}: the broker runs; first: reliq embedded stop {folder.path}")
        binary, parts = find(folder, server), Path(folder.at("appendonlydir"))
        files = [Path(path) for path in logs(folder.path)]
        if parts.is_dir():
            manifest = parts / "appendonly.aof.manifest"
            text = manifest.read_text("utf-8", "replace") if manifest.exists() else ""
            files = [parts / name for name in re.findall(r"(?m)^file (\S+) .*type [bi]", text)]
        if not (files and all(path.exists() for path in files)):
            raise Refused(
                f"{folder}: a data file or {parts}/appendonly.aof.manifest, which lists the data "
                "files, is missing or empty: restore it from a backup"
            )
        copy = folder.at(time.strftime("before-repair-%Y%m%d-%H%M%S"))
        shutil.copytree(folder.path, copy, ignore=_NO_DATA)
        # Check the file, not the manifest: valkey-check-aof takes a separate base file for damaged.
        done = subprocess.run(  # noqa: S603 - the server, under the name of its tool
            [f"{binary.name}-check-aof", "--fix", files[-1]],
            executable=binary.path,
            input="y\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Refused(f"{folder}: the repair failed: {done.stdout}{done.stderr}")
        write_state(held.fileno(), {})
    try:
        start.ensure(folder, parse({"embedded_server": server}))
    except BrokerUnavailable as error:
        raise Refused(
            f"the repair failed, restore the data from a backup; the original data is in {copy}. "
            f"{error}"
        ) from error
    start.stop(folder)
    lines = [*done.stdout.splitlines(), f"repaired; a copy of the original data is in {copy}"]
    out.answer({"copy": copy, "report": done.stdout}, as_json, lambda _: lines)


@embedded.command()
@_folder
@click.argument("to", type=click.Path())
@json_option
def backup(folder: Folder, to: str, as_json: bool) -> None:
    """Copy the data in FOLDER to a new folder TO, which a broker can open.

    The broker in FOLDER may run: the copy has its state at one instant.

    \b
    Example:
      reliq embedded backup /var/lib/shop /backup/monday
    """
    folder.require(create=False)
    before = logs(folder.path)
    try:
        shutil.copytree(folder.path, to, ignore=_NO_DATA)
    except FileExistsError as error:
        raise Refused(f"expected a path that does not exist, got: {to!r}") from error
    except OSError as error:
        # A file that was removed during the copy; other errors concern the disk or rights.
        failures = error.args[0] if isinstance(error, shutil.Error) else [str(error)]
        if not all("[Errno 2]" in str(failure) for failure in failures):
            shutil.rmtree(to, ignore_errors=True)
            raise Refused(f"{folder}: the copy failed: {error}") from error
        before = []
    if before != logs(folder.path):
        shutil.rmtree(to)
        raise Refused(f"{folder}: the broker was rewriting its log; retry")
    copied = _size_of(to)
    row = {"to": to, "bytes": copied}
    out.answer(row, as_json, lambda _: [f"{size(copied)} copied to {to}"])
