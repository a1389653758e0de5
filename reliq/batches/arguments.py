"""Arguments of a batch, checked where it is made: before anything of it is stored."""

from __future__ import annotations

from math import isfinite
from typing import Any

from ..errors import ConfigurationError
from ..store.jobs import MOST_ID, MOST_NUMBER, is_id, is_text


def checked_id(option: str, value: str) -> str:
    """Return *value*; raises ConfigurationError where it is no id."""
    if not is_id(value):
        raise ConfigurationError(
            f"expected {option} to be a text of 1 to {MOST_ID} characters that can be encoded, "
            f"got: {value!r:.100}"
        )
    return value


def checked_name(name: str) -> str:
    """Return *name*, which may be empty; raises ConfigurationError."""
    return "" if name == "" else checked_id("name", name)


def milliseconds(option: str, seconds: float) -> int:
    """Return a time in ms; raises ConfigurationError for what is no number above 0."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not isfinite(seconds) or not 0 < seconds * 1000 <= MOST_NUMBER:
        raise ConfigurationError(
            f"expected {option} to be a number of seconds above 0, got: {seconds!r:.100}"
        )
    return max(int(seconds * 1000), 1)


def names_of(failures: Any) -> tuple[str, ...]:
    """Return the dotted names of exceptions that count as failures; raises ConfigurationError."""
    if isinstance(failures, (tuple, list, set, frozenset)):
        found = [_name_of(failure) for failure in failures]
        if None not in found:
            return tuple(filter(None, found))
    raise ConfigurationError(
        "expected failures to be a tuple of exceptions or of their dotted names, got: "
        f"{failures!r:.100}"
    )


def _name_of(failure: Any) -> str | None:
    if isinstance(failure, type) and issubclass(failure, BaseException):
        return f"{failure.__module__}.{failure.__qualname__}"
    return failure if isinstance(failure, str) and failure and is_text(failure) else None
