"""``reliq embedded``: the broker of a folder: status, run, stop, repair, backup."""

from __future__ import annotations

import functools
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from reliq.embedded import maintenance
from reliq.embedded.folder import SCHEME, folder_of
from reliq.embedded.start import ensure
from reliq.errors import BrokerUnavailable, ReliqError
from reliq.options import parse
from reliq.units import size

from .console import Refused
from .endings import Group

if TYPE_CHECKING:
    from collections.abc import Callable

    from reliq.embedded.folder import Folder


@click.group(cls=Group)
def embedded() -> None:
    """Look at, run, stop, mend or copy the broker in a folder (reliq-embedded:////FOLDER).

    Applications start it by themselves; nothing here is needed for that.

    \b
    Examples:
      reliq embedded status /var/lib/shop
      reliq embedded run /var/lib/shop --maxmemory 500MB
      reliq embedded backup /var/lib/shop /backup/shop-monday
    """


def _command(command: Callable[..., None]) -> None:
    """Add a command with the argument FOLDER, also as its URL; errors of reliq are refusals."""

    @functools.wraps(command)
    def wrapper(folder: str, **given: Any) -> None:
        try:
            command(folder_of(folder.removeprefix(f"{SCHEME}:///")), **given)
        except ReliqError as error:
            raise Refused(str(error)) from error

    embedded.command()(click.argument("folder")(wrapper))


_server_option = click.option("--server", help="The path of a valkey-server or redis-server.")


@_command
def status(folder: Folder) -> None:
    """Show whether the broker in FOLDER runs, and its memory, disk, clients and last error.

    Starts nothing, and keeps nothing alive.

    \b
    Example:
      reliq embedded status /var/lib/shop
    """
    for name, value in maintenance.status(folder):
        click.echo(f"{name:<11} {value}")


@_command
@click.option("--maxmemory", help="Its memory, as 64MB.  [default: 256 MB, or a quarter]")
@click.option("--fsync", default="second", show_default=True, help="second, or always.")
@_server_option
def run(folder: Folder, maxmemory: str | None, fsync: str, server: str | None) -> None:
    """Keep the broker in FOLDER running until SIGTERM or Ctrl-C, for systemd or a container.

    \b
    Example:
      reliq embedded run /var/lib/shop --maxmemory 500MB
    """
    given = {"maxmemory": maxmemory, "fsync": fsync, "idle": 0, "server": server}
    options = parse({f"embedded_{name}": value for name, value in given.items()})
    click.echo(f"running the broker in {folder.path}; its log: {folder.at('broker.log')}", err=True)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    while not ended.is_set():
        with suppress(BrokerUnavailable):  # it is tried again after its pause
            ensure(folder, options)
        ended.wait(1)
    maintenance.stop(folder)


@_command
def stop(folder: Folder) -> None:
    """End the broker in FOLDER; the next connect of an application starts it again.

    \b
    Example:
      reliq embedded stop /var/lib/shop
    """
    click.echo("stopped" if maintenance.stop(folder) else "it did not run")


@_command
@_server_option
def repair(folder: Folder, server: str | None) -> None:
    """Mend the data in FOLDER where the broker does not open it, say after a power cut.

    A copy is made first. The end of the log that cannot be read is cut off.

    \b
    Example:
      reliq embedded repair /var/lib/shop
    """
    copy, said = maintenance.repair(folder, server)
    click.echo(f"{said}\nmended; a copy of the former data is in {copy}")


@_command
@click.argument("to", type=click.Path())
def backup(folder: Folder, to: str) -> None:
    """Copy the data in FOLDER into a new folder TO, which opens as a broker. It may run.

    \b
    Example:
      reliq embedded backup /var/lib/shop /backup/monday
    """
    click.echo(f"{size(maintenance.backup(folder, to))} copied to {to}")
