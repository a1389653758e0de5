"""``reliq embedded``: the broker of a folder, looked at, run, stopped, mended, copied."""

from __future__ import annotations

import functools
import signal
import threading
import time
from dataclasses import asdict
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

    \b
    Example:
      reliq embedded status /var/lib/shop
    """
    found = asdict(maintenance.status(folder))
    out.answer(found, as_json, _rows)


def _rows(found: dict[str, Any]) -> Iterator[str]:
    shown: dict[str, Callable[[Any], str]] = {
        "uptime_s": duration,
        "idle_s": duration,
        "last_error_at": time.ctime,
    }
    for name, value in found.items():
        if value is not None:
            show = size if name.endswith("_bytes") else shown.get(name, str)
            label = name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")
            yield f"{label:<13} {show(value)}"


@embedded.command()
@_in_folder
@click.option("--maxmemory", help="Its memory, as 64MB.  [default: 256 MB, or a quarter]")
@click.option("--fsync", default="second", show_default=True, help="second, or always.")
@click.option("--server", help="The path of a valkey-server or redis-server.")
def run(folder: Folder, maxmemory: str | None, fsync: str, server: str | None) -> None:
    """Keep the broker in FOLDER running until SIGTERM or Ctrl-C, for systemd or a container.

    \b
    Example:
      reliq embedded run /var/lib/shop --maxmemory 500MB
    """
    options = parse(
        {
            "embedded_maxmemory": maxmemory,
            "embedded_fsync": fsync,
            "embedded_idle": 0,
            "embedded_server": server,
        }
    )
    click.echo(f"running the broker in {folder.path}; its log: {folder.at('broker.log')}", err=True)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    maintenance.run(folder, wishes_of(options), ended.wait)


@embedded.command()
@_in_folder
def stop(folder: Folder) -> None:
    """End the broker in FOLDER; the next connect of an application starts it again.

    \b
    Example:
      reliq embedded stop /var/lib/shop
    """
    click.echo("stopped" if maintenance.stop(folder) else "it did not run")


@embedded.command()
@_in_folder
@click.option("--server", help="The path of a valkey-server or redis-server.")
def repair(folder: Folder, server: str | None) -> None:
    """Mend the data in FOLDER where the broker does not open it, say after a power cut.

    A copy is made first. The end of the log that cannot be read is cut off.

    \b
    Example:
      reliq embedded repair /var/lib/shop
    """
    copy, said = maintenance.repair(folder, server)
    click.echo(f"{said}\nmended; what there was is in {copy}")


@embedded.command()
@_in_folder
@click.argument("to", type=click.Path())
def backup(folder: Folder, to: str) -> None:
    """Copy the data in FOLDER into a new folder TO, which opens as a broker. It may run.

    \b
    Example:
      reliq embedded backup /var/lib/shop /backup/monday
    """
    click.echo(f"{size(maintenance.backup(folder, to))} copied to {to}")
