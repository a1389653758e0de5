"""Interrupts at every point at which Python checks for signals, one run for each.

A signal handler that raises (Ctrl-C, a time limit) does so only at the start of a function, after a
call, or at the backward jump of a loop. A test can therefore try each such point in turn.
"""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reliq

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

_LOOKS_AFTER = ("CALL", "PRECALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_PARTS_OF_A_CALL = ("CALL", "PRECALL", "CACHE")


class Interrupted(BaseException):
    """Raised at one of these points."""


PACKAGE = tuple(str(path) for path in Path(reliq.__file__).parent.rglob("*.py"))
"""All files of reliq."""


class Interrupter:
    """Raises at the point with a given number, in the code of some files and one thread."""

    error: type[BaseException] = Interrupted

    def __init__(self, files: Sequence[str], point: int) -> None:
        self._files = tuple(files)
        self._left = point
        self._last: dict[FrameType, str] = {}
        self.where = ""
        """The place of the interrupt; empty if there were fewer points."""
        self.kept: BaseException | None = None
        """The interrupt. As in a program that keeps errors, it keeps the interrupted frames."""

    def run(self, do: Callable[[], None]) -> None:
        """Call *do*; raises its exceptions, but not the interrupt."""
        sys.settrace(self._calls)
        try:
            do()
        except self.error as interrupted:
            self.kept = interrupted
        finally:
            sys.settrace(None)
            self._last.clear()  # frames keep what they were working on

    def _calls(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes = True
        return self._steps

    def _steps(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event != "opcode":
            return self._steps
        operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        last = self._last.get(frame, "RESUME")
        self._last[frame] = operation
        begins = last == "RESUME"
        if begins or (last.startswith(_LOOKS_AFTER) and not operation.startswith(_PARTS_OF_A_CALL)):
            self._left -= 1
            if self._left == 0:
                code = frame.f_code
                self.where = f"{code.co_filename}:{frame.f_lineno} {code.co_name} {operation}"
                self.hit()
        return self._steps

    def hit(self) -> None:
        """Raise."""
        sys.settrace(None)
        raise self.error


class Limit(Exception):
    """A time limit, as applications raise it from a signal handler."""


class Limiter(Interrupter):
    """Raises an Exception, which broad handlers catch."""

    error = Limit


class Nester(Interrupter):
    """Calls a function at the point instead of raising, as a handler or a destructor does."""

    def __init__(self, files: Sequence[str], point: int, call: Callable[[], None]) -> None:
        super().__init__(files, point)
        self._call = call

    def hit(self) -> None:
        """Call the function, without counting its points."""
        sys.settrace(None)
        self._call()
