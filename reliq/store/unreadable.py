"""What is stored and cannot be read: left out, and said once, so that the rest is seen.

Whoever may write to a broker can store what no version of reliq would. A reader shows what
it can, and says here how many there are that it cannot, and which.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import logger

if TYPE_CHECKING:
    from collections.abc import Sequence


_MOST_NAMED = 5
_MOST_REMEMBERED = 10_000
_said: set[tuple[str, str, str]] = set()


def left_out(broker: str, what: str, names: Sequence[object]) -> None:
    """Warn of *names* at *broker* that cannot be read; each is said once by this process."""
    if len(_said) > _MOST_REMEMBERED:
        _said.clear()
    fresh = [name for name in map(str, names) if (broker, what, name) not in _said]
    _said.update((broker, what, name) for name in fresh)
    if fresh:
        named = ", ".join(map(repr, fresh[:_MOST_NAMED]))
        more = f" and {len(fresh) - _MOST_NAMED} more" if len(fresh) > _MOST_NAMED else ""
        logger.warning(
            "%d %s at %s cannot be read: %s%s; reliq did not write it, or another version did: "
            "find out who writes to this broker, and delete it",
            len(fresh),
            what,
            broker,
            named,
            more,
        )


def number(stored: object, otherwise: int = 0) -> int:
    """Return a stored number as an int; *otherwise* for what is none."""
    try:
        return int(float(stored)) if not isinstance(stored, int) else stored  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return otherwise


def mapping(stored: str | bytes | None) -> dict[str, Any]:
    """Return a stored JSON object, {} where there is none; raises ValueError for what is none."""
    found = json.loads(stored) if stored else {}
    if not isinstance(found, dict):
        raise ValueError("what is stored is no object")  # noqa: TRY004 - as what JSON raises
    return found


def counts(stored: str | bytes | None) -> dict[str, int]:
    """Return stored counts by name; raises ValueError for what is no JSON object."""
    return {name: number(value) for name, value in mapping(stored).items()}
