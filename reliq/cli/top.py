"""``reliq top``: the status, live."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .endings import Refused
from .options import Number, on_brokers
from .status import looks, status_data, status_tables

if TYPE_CHECKING:
    from .target import Target


def screen(data: dict[str, Any], interval: float) -> Group:
    """Return one look as it fills the terminal."""
    away = [item["error"] for item in data["brokers"] if not item["reachable"]]
    head = Text(f"reliq top   {time.strftime('%H:%M:%S')}   every {interval:g} s   Ctrl-C ends it")
    return Group(head, *status_tables(data), *(Text(error, "bold red") for error in away))


@click.command()
@click.option(
    "--interval",
    type=Number(0.1, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--count", type=click.IntRange(1), help="End after so many looks.")
@on_brokers
def top(target: Target, interval: float, count: int | None, as_json: bool) -> None:
    """Show the status again and again; Ctrl-C ends it.

    A broker that does not answer is shown so, and asked again. With --json each look
    is one line, for whoever reads a pipe.

    \b
    Examples:
      reliq top
      reliq top --interval 0.5
      reliq top --json --count 3 --interval 10
    """
    screens = map(status_data, looks(target, interval, count))
    try:
        if as_json:
            for data in screens:
                click.echo(json.dumps(data, default=str))
            return
        console = Console(highlight=False)
        if not console.is_terminal:
            raise Refused("top needs a terminal: use --json here, or reliq status")
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for data in screens:
                live.update(screen(data, interval), refresh=True)
    except KeyboardInterrupt:
        return  # that is how one leaves it
