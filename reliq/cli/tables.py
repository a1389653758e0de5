"""Tables, bars and colours: the one module of the commands that imports rich for them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console, Group  # noqa: F401 - used from here, as all of these
from rich.live import Live  # noqa: F401
from rich.pretty import Pretty
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from reliq.printable import jsonable, plain
from reliq.units import per_second

from .endings import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")


def cell(value: object, style: str = "") -> Text:
    """Return *value* for a table; nothing in it is markup."""
    return Text(plain(value), style=style)


def count(number: int | None, style: str = "") -> Text:
    """Return a number; a zero is dim, so that the others are seen."""
    if number is None:
        return Text("-", style="dim")
    return Text(f"{number:,}", style="dim" if number == 0 else style)


def rate(number: float | None) -> Text:
    """Return messages a second."""
    if number is None:
        return Text("-", style="dim")
    return Text(per_second(number), style="dim" if number == 0 else "")


def yes(good: bool) -> Text:
    """Return whether something is as it should be."""
    return cell("yes", "green") if good else cell("NO", "bold red")


def listing(
    rows: Sequence[dict[str, Any]], columns: Mapping[str, str | Callable[[dict[str, Any]], Any]]
) -> Table:
    """Return a table of rows, each of some broker, which is shown where there are several.

    columns: title -> the name of a value, or what makes one of a row; a title after ">" is of
    numbers.
    """
    if len({row.get("broker") for row in rows}) > 1:
        columns = {"broker": "broker", **columns}
    made = Table(header_style="bold")
    for name in columns:
        side: Any = "right" if name.startswith(">") else "left"
        # Long texts are folded, not cut: a tag that is cut is of no use.
        made.add_column(name.removeprefix(">"), justify=side, overflow="fold")
    for row in rows:
        values = (row[of] if isinstance(of, str) else of(row) for of in columns.values())
        made.add_row(*(item if isinstance(item, (Text, Pretty)) else cell(item) for item in values))
    return made


def fields(values: Mapping[str, Any]) -> Table:
    """Return a table of names and values."""
    rows = [
        {"field": name, "value": Pretty(jsonable(value)) if isinstance(value, dict) else value}
        for name, value in values.items()
    ]
    return listing(rows, {"field": "field", "value": "value"})


def show(*renderables: Any) -> None:
    """Print to standard output: with colours on a terminal, not wrapped elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        # Whoever reads it by a pipe wants a row in a line.
        console = Console(highlight=False, width=max(console.width, 200))
    for item in renderables:
        if isinstance(item, str):
            click.echo(plain(item))
        else:
            console.print(item)


def answer(data: T, as_json: bool, shown: Callable[[T], Iterable[Any]]) -> None:
    """Print what a command has found: as JSON, or what *shown* makes of it."""
    if as_json:
        dump(data)
    else:
        show(*shown(data))


def dump(value: Any) -> None:
    """Print JSON."""
    click.echo(json.dumps(jsonable(value), indent=2, default=str))


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error; give what is called after each step, with its size."""
    console = Console(stderr=True)
    columns: Sequence[Any] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(plain(label).replace("[", r"\["), total=total)
        yield lambda step: bar.advance(task, step)


def progressing(
    label: str, total: int, steps: Iterator[int], again: str = "run it again to go on"
) -> int:
    """Run *steps* under a progress bar; return their sum.

    Ctrl-C ends the command between two steps, says how far it came and what *again* does.
    """
    done = 0
    try:
        with progress(label, total) as advance:
            for step in steps:
                done += step
                advance(step)
    except KeyboardInterrupt:
        click.echo(f"interrupted after {done} of {total}; {again}", err=True)
        click.get_current_context().exit(INTERRUPTED)
    return done
