"""``reliq embedded``: the broker of a folder, looked at, run, stopped, mended, copied."""

from __future__ import annotations

import functools
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from reliq.embedded import maintenance
from reliq.embedded.folder import SCHEME, folder_of
from reliq.embedded.start import wishes_of
from reliq.errors import ReliqError
from reliq.options import parse
from reliq.units import duration, size

from . import console as out
from .console import Refused
from .endings import Group
from .options import json_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reliq.embedded.folder import Folder


@click.group(cls=Group)
def embedded() -> None:
    """Look at, run, stop, mend or copy the broker in a folder (reliq-embedded:////FOLDER).

    Applications start it by themselves; nothing here is needed for that.

    \b
    Examples:
      reliq embedded status /var/lib/shop
      reliq embedded run /var/lib/shop
      reliq embedded backup /var/lib/shop /backup/shop-monday
    """


def _in_folder(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument FOLDER, also as its URL; errors of reliq are refusals."""

    @click.argument("folder")
    @functools.wraps(command)
    def wrapper(folder: str, **given: Any) -> None:
        try:
            command(folder_of(folder.removeprefix(f"{SCHEME}:///")), **given)
        except ReliqError as error:
            raise Refused(str(error)) from error

    return wrapper


@embedded.command()
@_in_folder
@json_option
def status(folder: Folder, as_json: bool) -> None:
    """Show whether the broker in FOLDER runs, and its memory, disk, clients and last error.

    Starts nothing, and keeps nothing alive.
    """
    found = maintenance.status(folder)
    out.answer(found, as_json, lambda _: (f"{name:<11} {text}" for name, text in _rows(found)))


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    up = found["uptime_s"]
    yield "running", f"yes, for {duration(up)}" if found["running"] else "no"
    for name in ("started_by", "server", "clients", "fsync", "pid", "nice", "cgroup"):
        if found[name] is not None:
            yield name.replace("_", " "), str(found[name])
    if found["memory_bytes"] is not None:
        yield "memory", f"{size(found['memory_bytes'])} of {size(found['memory_limit_bytes'])}"
    yield "disk", f"{size(found['disk_bytes'])}; {size(found['disk_free_bytes'])} are free"
    if found["idle_s"] is not None:
        yield "ends", f"{found['idle_s']:g} s after its last client" if found["idle_s"] else "never"
    yield "log", found["log"]
    if found["last_error"]:
        at = datetime.fromtimestamp(found["last_error_at"], timezone.utc)
        yield "last error", f"{at:%Y-%m-%d %H:%M:%S} UTC: {found['last_error']}"


@embedded.command()
@_in_folder
@click.option("--maxmemory", help="Its memory, as 64MB.  [default: 256 MB, or a quarter]")
@click.option("--fsync", default="second", show_default=True, help="second, or always.")
@click.option("--idle", type=float, default=0.0, help="End so many seconds after the last client.")
@click.option("--server", help="The path of a valkey-server or redis-server.")
def run(folder: Folder, maxmemory: str | None, fsync: str, idle: float, server: str | None) -> None:
    """Run the broker in FOLDER in the foreground until SIGTERM, for systemd or a container."""
    options = parse(
        {
            "embedded_maxmemory": maxmemory,
            "embedded_fsync": fsync,
            "embedded_idle": idle,
            "embedded_server": server,
        }
    )
    click.echo(f"running the broker in {folder.path}; its log: {folder.at('broker.log')}", err=True)
    maintenance.run(folder, wishes_of(options))


@embedded.command()
@_in_folder
def stop(folder: Folder) -> None:
    """End the broker in FOLDER; the next connect of an application starts it again."""
    click.echo("stopped" if maintenance.stop(folder) else "it did not run")


@embedded.command()
@_in_folder
@click.option("--server", help="The path of a valkey-server or redis-server.")
def repair(folder: Folder, server: str | None) -> None:
    """Mend the data in FOLDER where the broker does not open it, say after a power cut.

    A copy is made first. The end of the log that cannot be read is cut off.
    """
    copy, said = maintenance.repair(folder, server)
    click.echo(f"{said}\nmended; what there was is in {copy}")


@embedded.command()
@_in_folder
@click.argument("to", type=click.Path())
def backup(folder: Folder, to: str) -> None:
    """Copy the data in FOLDER into a new folder TO, which opens as a broker. It may run."""
    click.echo(f"{size(maintenance.backup(folder, to))} copied to {to}")
