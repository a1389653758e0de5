"""Unreadable stored data: omitted, and reported once in the log.

Any program with write access to a broker can store data that no version of reliq would write. A
reader shows the readable data, and reports the number and the names of the rest here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import logger

if TYPE_CHECKING:
    from collections.abc import Sequence


_MOST_NAMED = 5
_MOST_REMEMBERED = 10_000
_reported: set[tuple[str, str, str]] = set()


def left_out(broker: str, what: str, names: Sequence[object]) -> None:
    """Log a warning about unreadable *names* at *broker*, once per name in this process."""
    if len(_reported) > _MOST_REMEMBERED:
        _reported.clear()
    fresh = [name for name in map(str, names) if (broker, what, name) not in _reported]
    _reported.update((broker, what, name) for name in fresh)
    if fresh:
        named = ", ".join(map(repr, fresh[:_MOST_NAMED]))
        more = f" and {len(fresh) - _MOST_NAMED} more" if len(fresh) > _MOST_NAMED else ""
        logger.warning(
            "%d %s at %s cannot be read: %s%s; this version of reliq did not write the data: "
            "find the program that did, and delete the data",
            len(fresh),
            what,
            broker,
            named,
            more,
        )


def number(stored: object, otherwise: int = 0) -> int:
    """Return a stored number as an int, or *otherwise* if it is not a number."""
    try:
        return int(float(stored)) if not isinstance(stored, int) else stored  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return otherwise


def mapping(stored: str | bytes | None) -> dict[str, Any]:
    """Return a stored JSON object, or {} if nothing is stored; raises ValueError otherwise."""
    value = json.loads(stored) if stored else {}
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 - the json module raises it, too
    return value


def counts(stored: str | bytes | None) -> dict[str, int]:
    """Return stored counts by name; raises ValueError unless they are a JSON object."""
    return {name: number(value) for name, value in mapping(stored).items()}
