"""``reliq embedded``: the commands for embedded brokers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reliq.embedded import start
from reliq.embedded.folder import SCHEME, folder_of
from reliq.embedded.keeper import ask, lock, logs, open_own, write_state
from reliq.embedded.start import find, writer_of
from reliq.errors import BrokerUnavailable
from reliq.options import parse
from reliq.units import duration, size

from .endings import Group, Refused

if TYPE_CHECKING:
    from reliq.embedded.folder import Folder

_NO_DATA = shutil.ignore_patterns("broker.*", "*.lock", "before-repair-*")


@click.group(cls=Group)
def embedded() -> None:
    """Inspect, run, stop, repair or copy an embedded broker (reliq-embedded:////FOLDER).

    Applications start the broker automatically, without these commands.
    """


_folder = click.argument(
    "folder", callback=lambda _context, _name, said: folder_of(said.removeprefix(f"{SCHEME}:///"))
)
_server_option = click.option("--server", help="Path of a valkey-server or redis-server.")


@embedded.command()
@_folder
def status(folder: Folder) -> None:
    """Show whether the broker in FOLDER runs, and its memory, disk, clients and last error.

    The command neither starts the broker nor keeps it running.

    \b
    Example:
      reliq embedded status /var/lib/shop
    """
    folder.require(create=False)
    state, wrote, text = folder.state(), writer_of(folder), ""
    with suppress(OSError), folder.socket() as path:
        text = ask(path, "INFO").decode("utf-8", "replace")
    said: dict[str, object] = {"running": "yes" if state["runs"] else "no", "server": wrote or "-"}
    if info := dict(line.split(":", 1) for line in text.splitlines() if ":" in line):
        pid = int(info["process_id"])
        said["since"] = f"{duration(int(info['uptime_in_seconds']))}, by {state.get('by')}"
        said["clients"] = int(info["connected_clients"]) - 1  # without this one
        said["memory"] = f"{size(int(info['used_memory']))} of {size(state.get('maxmemory'))}"
        with suppress(OSError):  # the process may be in another container
            said["nice"] = f"{os.getpriority(os.PRIO_PROCESS, pid)} (pid {pid})"
            said["cgroup"] = Path(f"/proc/{pid}/cgroup").read_text("utf-8").split("\n")[0]
    data = sum(Path(path).stat().st_size for path in logs(folder.path))
    said["disk"] = f"{size(data)}, {size(shutil.disk_usage(folder.path).free)} free"
    said["log"] = folder.at("broker.log")
    if "failed" in state:
        said["last error"] = f"{time.ctime(state['failed_at'])}: {state['failed']}"
    for name, value in said.items():
        click.echo(f"{name:<11} {value}")


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
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    while not ended.is_set():
        with suppress(BrokerUnavailable):  # retry a second later
            start.ensure(folder, options)
        ended.wait(1)
    start.stop(folder)


@embedded.command()
@_folder
def stop(folder: Folder) -> None:
    """Stop the broker in FOLDER. The next connection of an application starts it again.

    \b
    Example:
      reliq embedded stop /var/lib/shop
    """
    click.echo("stopped" if start.stop(folder) else "the broker was not running")


@embedded.command()
@_folder
@_server_option
def repair(folder: Folder, server: str | None) -> None:
    """Repair data in FOLDER that the broker cannot open, for example after a power loss.

    The command first copies the data. It then cuts off the unreadable end of the log.

    \b
    Example:
      reliq embedded repair /var/lib/shop
    """
    folder.require(create=False)
    with open(open_own(folder.at("keeper.lock")), "r+b") as held:  # noqa: PTH123 - blocks a start
        if not lock(held.fileno()) or folder.read("server.lock")[1]:
            raise Refused(f"{folder}: the broker runs; first: reliq embedded stop {folder.path}")
        binary, parts = find(folder, server), Path(folder.at("appendonlydir"))
        files = [Path(path) for path in logs(folder.path)]
        if parts.is_dir():
            manifest = parts / "appendonly.aof.manifest"
            text = manifest.read_text("utf-8") if manifest.exists() else ""
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
    click.echo(f"{done.stdout}\nrepaired; a copy of the original data is in {copy}")


@embedded.command()
@_folder
@click.argument("to", type=click.Path())
def backup(folder: Folder, to: str) -> None:
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
    except shutil.Error:
        before = []  # a file was removed during the copy
    if before != logs(folder.path):
        shutil.rmtree(to)
        raise Refused(f"{folder}: the broker was rewriting its log; retry")
    click.echo(f"{size(sum(Path(path).stat().st_size for path in logs(to)))} copied to {to}")
