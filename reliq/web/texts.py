"""What templates make of values: numbers, times and text that others wrote."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from ..printable import plain
from ..units import duration, per_second, size

if TYPE_CHECKING:
    from collections.abc import Callable

_LAST_MS = 253_402_300_799_999
"""The last moment of the year 9999: what is later cannot be written as a date."""
NONE = "\N{EN DASH}"


def shown(value: Any) -> Any:
    """Return what an expression of a template is shown as: no text can be more than text."""
    if value is None:
        return NONE
    if isinstance(value, Markup):
        return value
    return plain(value) if isinstance(value, str) else value


def _known(text: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return what makes text of a value, and a dash of None."""
    return lambda value: NONE if value is None else text(value)


rate = _known(per_second)
"""So many a second."""


def when(ms: int | None, pattern: str = "%Y-%m-%d %H:%M:%S") -> Markup:
    """Return a time of the broker's as an element that says it exactly, and shows *pattern*."""
    if not ms or not 0 < ms <= _LAST_MS:
        return Markup(NONE)  # noqa: S704 - our own
    at = datetime.fromtimestamp(ms / 1000, timezone.utc)
    exact = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact, exact, at.strftime(pattern)
    )


def clock(ms: int | None) -> Markup:
    """Return the time of the day of a time, and the rest of it when it is pointed at."""
    return when(ms, "%H:%M:%S")


def lines(text: str | None) -> Markup:
    """Return text of several lines; what would not be text is escaped in each."""
    if text is None:
        return Markup(NONE)  # noqa: S704 - our own
    each = text.replace("\r\n", "\n").split("\n")
    return Markup("\n").join(escape(plain(line.replace("\t", "    "))) for line in each)


def cut(text: str | None, most: int = 80) -> str:
    """Return the beginning of *text*."""
    shortened = plain(text)
    if text and not shortened.strip():
        return f'"{shortened}"'  # it can be seen, and a link of it can be hit
    return shortened if len(shortened) <= most else shortened[: most - 1] + "…"


FILTERS: dict[str, Callable[..., Any]] = {
    "n": _known("{:,}".format),
    "rate": rate,
    "age": _known(duration),
    "bytes": _known(size),
    "when": when,
    "clock": clock,
    "lines": lines,
    "cut": cut,
}
