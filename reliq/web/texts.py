"""Filters of the templates: numbers, times and untrusted text."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from ..printable import plain
from ..units import duration, per_second, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LAST_MS = 253_402_300_799_999
"""The end of the year 9999. Later times have no date."""
NONE = "\N{EN DASH}"


def shown(value: Any) -> Any:
    """Return the displayed form of a template expression, with text made printable."""
    if value is None:
        return NONE
    if isinstance(value, Markup):
        return value
    return plain(value) if isinstance(value, str) else value


def _known(text: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return a filter that applies *text* to a value, and turns None into a dash."""
    return lambda value: NONE if value is None else text(value)


rate = _known(per_second)
"""A rate a second."""


def when(ms: int | None, pattern: str = "%Y-%m-%d %H:%M:%S") -> Markup:
    """Return a broker's time as an element that shows *pattern*, with the exact time as title."""
    if not ms or not 0 < ms <= _LAST_MS:
        return Markup(NONE)  # noqa: S704 - our own
    at = datetime.fromtimestamp(ms / 1000, timezone.utc)
    exact = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact, exact, at.strftime(pattern)
    )


def clock(ms: int | None) -> Markup:
    """Return the time of day of a time, with the exact time as title."""
    return when(ms, "%H:%M:%S")


def lines(text: str | None) -> Markup:
    """Return text of several lines, each printable and escaped."""
    if text is None:
        return Markup(NONE)  # noqa: S704 - our own
    each = text.replace("\r\n", "\n").split("\n")
    return Markup("\n").join(escape(plain(line.replace("\t", "    "))) for line in each)


def cut(text: str | None, most: int = 80) -> str:
    """Return *text* cut to *most* characters."""
    shortened = plain(text)
    if text and not shortened.strip():
        return f'"{shortened}"'  # quotes make blank text visible and its link clickable
    return shortened if len(shortened) <= most else shortened[: most - 1] + "…"


_CELL = re.compile("<tr|<t[hd]")


def labelled(rows: Markup, heads: Sequence[tuple[str, str]]) -> Markup:
    """Return table rows in which each cell has the title of its column, for phones.

    There, a row is a card with one line for each cell. The texts of *rows* are escaped.
    """
    titles: Iterator[tuple[str, str]] = iter(())

    def label(matched: re.Match[str]) -> str:
        nonlocal titles
        if matched[0] == "<tr":
            titles = iter(heads)
            return matched[0]
        title, _ = next(titles, ("", ""))
        return f'{matched[0]} data-label="{Markup(title).striptags()}"'  # noqa: S704 - our own

    return Markup(_CELL.sub(label, rows))  # noqa: S704 - our own


FILTERS: dict[str, Callable[..., Any]] = {
    "n": _known("{:,}".format),
    "rate": rate,
    "age": _known(duration),
    "bytes": _known(size),
    "when": when,
    "clock": clock,
    "lines": lines,
    "cut": cut,
    "labelled": labelled,
}
