"""Waiting for a condition with a deadline, used by tests instead of sleeps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    *,
    timeout_s: float = 60.0,
    interval_s: float = 0.05,
    what: str | Callable[[], object] = "the condition",
) -> T:
    """Poll until condition() is true and return its value; at the deadline, fail with `what`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            name = what() if callable(what) else what
            raise AssertionError(f"after {timeout_s:g} s still waiting for: {name}")
        time.sleep(interval_s)


def stays_true(
    condition: Callable[[], object],
    *,
    for_s: float,
    interval_s: float = 0.05,
    what: str = "the condition",
) -> None:
    """Fail as soon as condition() is false; return after it was true for `for_s` seconds."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert condition(), f"ended too soon: {what}"
        time.sleep(interval_s)
