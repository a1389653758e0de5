"""Walks: the files of the package through which one operation passes.

Counted with ``sys.setprofile``, in the calling thread, so that no noise affects the result.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import reliq

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PACKAGE = str(Path(reliq.__file__).parent)


class Walk(NamedTuple):
    """The calls of one operation, those of other packages left out."""

    calls: int
    files: tuple[str, ...]
    """The files of the called functions, relative to the package."""
    changes: int
    """How many calls, in their order, are of another file than the call before."""


def walk(operation: Callable[[], Any]) -> Walk:
    """Run *operation* once and return its walk."""
    called: list[str] = []

    def record(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.append(frame.f_code.co_filename[len(PACKAGE) + 1 :])

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        operation()
    finally:
        sys.setprofile(before)
    changes = sum(one != other for one, other in pairwise(called))
    return Walk(len(called), tuple(sorted(set(called))), changes)
