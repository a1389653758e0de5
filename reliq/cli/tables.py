"""Tables, progress bars and colours: this module imports rich for the commands."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console, Group  # noqa: F401 - the commands import all names from here
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

    from rich.console import ConsoleOptions, RenderResult

T = TypeVar("T")

_UNBOUNDED = 10_000
"""More columns than any terminal has."""


def cell(value: object, style: str = "") -> Text:
    """Return *value* as a table cell, without interpreting markup."""
    return Text(plain(value), style=style)


def count(number: int | None, style: str = "") -> Text:
    """Return a number as a cell. A zero is dim, so that other numbers stand out."""
    if number is None:
        return Text("-", style="dim")
    return Text(f"{number:,}", style="dim" if number == 0 else style)


def rate(number: float | None) -> Text:
    """Return a rate in messages per second as a cell."""
    if number is None:
        return Text("-", style="dim")
    return Text(per_second(number), style="dim" if number == 0 else "")


def yes(good: bool) -> Text:
    """Return "yes" in green, or "NO" in red."""
    return cell("yes", "green") if good else cell("NO", "bold red")


class Listing(Table):
    """A table that leaves out *optional* columns on a narrow terminal, and names them below.

    The last optional column goes first. Cells that are still too wide are folded.
    """

    optional: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table as it fits."""
        every, hidden = [*self.columns], list[str]()
        while not self._fits(console, options) and len(hidden) < len(self.optional):
            hidden.append(self.optional[-1 - len(hidden)])
            self.columns = [column for column in every if column.header not in hidden]
        yield from super().__rich_console__(console, options)
        if hidden:
            names = ", ".join(reversed(hidden))
            yield Text(f"without {names}: too narrow; --json shows all", style="dim")
        self.columns = every

    def _fits(self, console: Console, options: ConsoleOptions) -> bool:
        wide = options.update(width=_UNBOUNDED)
        return self.__rich_measure__(console, wide).maximum <= options.max_width


def listing(
    rows: Sequence[dict[str, Any]],
    columns: Mapping[str, str | Callable[[dict[str, Any]], Any]],
    *,
    optional: Sequence[str] = (),
) -> Table:
    """Return a table of rows. With several brokers, the first column shows the broker.

    columns: title -> the key of a value, or a function of the row. A title that starts with ">"
    aligns its column to the right. *optional*: see :class:`Listing`.
    """
    if len({row.get("broker") for row in rows}) > 1:
        columns = {"broker": "broker", **columns}
    made = Listing(header_style="bold")
    made.optional = [name for name in optional if {name, f">{name}"} & columns.keys()]
    for name in columns:
        side: Any = "right" if name.startswith(">") else "left"
        # Fold long texts: a truncated tag is useless.
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
    """Print to standard output: with colours on a terminal, and with wide lines elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        # Readers of a pipe expect one line for each row.
        console = Console(highlight=False, width=max(console.width, 200))
    for item in renderables:
        if isinstance(item, str):
            click.echo(plain(item))
        else:
            console.print(item)


def answer(data: T, as_json: bool, shown: Callable[[T], Iterable[Any]]) -> None:
    """Print the result of a command: as JSON, or as formatted by *shown*."""
    if as_json:
        dump(data)
    else:
        show(*shown(data))


def dump(value: Any) -> None:
    """Print JSON."""
    click.echo(json.dumps(jsonable(value), indent=2, default=str))


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error; yield a function that adds a step to it."""
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


def progressing(label: str, total: int, steps: Iterator[int]) -> int:
    """Run *steps* under a progress bar; return their sum.

    Ctrl-C ends the command between two steps; it prints the progress.
    """
    done = 0
    try:
        with progress(label, total) as advance:
            for step in steps:
                done += step
                advance(step)
    except KeyboardInterrupt:
        text = f"interrupted after {done} of {total}; run the command again to continue"
        click.echo(text, err=True)
        click.get_current_context().exit(INTERRUPTED)
    return done
