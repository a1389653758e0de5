"""Walks: the files of the package through which one operation passes.

Counted with ``sys.setprofile``, in the calling thread. Imports at a first use and destructors do
not count: they depend on what ran in this process before.
"""

from __future__ import annotations

import gc
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import reliq
from reliq import lazy

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

PACKAGE = str(Path(reliq.__file__).parent)
LOAD = lazy.names_of("", {}).__code__
"""The function that imports a module when one of its names is first used."""


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
        if event == "call" and _is_ours(frame.f_code) and not _imports(frame):
            called.append(frame.f_code.co_filename[len(PACKAGE) + 1 :])

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(record)
    try:
        operation()
    finally:
        sys.setprofile(before)
        gc.enable()
    changes = sum(one != other for one, other in pairwise(called))
    return Walk(len(called), tuple(sorted(set(called))), changes)


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE)


def _imports(frame: FrameType | None) -> bool:
    """Whether *frame* belongs to an import of one of our modules."""
    while frame is not None:
        code = frame.f_code
        if _is_ours(code) and (code.co_name == "<module>" or code is LOAD):
            return True
        frame = frame.f_back
    return False
