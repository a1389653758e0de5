"""Interrupts: exceptions that arrive from outside while code of a message runs."""

from __future__ import annotations

from inspect import CO_VARARGS
from traceback import walk_tb
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Functions of gevent and eventlet in which a greenlet waits for its next turn.
_SWITCHES = frozenset({"switch", "_greenlet_switch"})


def came_from_outside(error: BaseException) -> bool:
    """Whether *error* was raised by a signal handler, or thrown into a waiting greenlet.

    A handler is known by its argument, the frame that it interrupted. The exception may have been
    wrapped in another one on its way.
    """
    names = (frame.f_code.co_name.rpartition(".")[2] for frame in _frames(error))
    return came_from_handler(error) or not _SWITCHES.isdisjoint(names)


def came_from_handler(error: BaseException) -> bool:
    """Whether a signal handler raised *error*, or an exception that was its cause."""
    return any(map(_takes_a_frame, _frames(error)))


def _frames(error: BaseException) -> Iterator[FrameType]:
    cause: BaseException | None = error
    while cause is not None:
        for frame, _ in walk_tb(cause.__traceback__):
            yield frame
        cause = cause.__cause__


def _takes_a_frame(frame: FrameType) -> bool:
    code, values = frame.f_code, frame.f_locals
    named = code.co_argcount + code.co_kwonlyargcount
    arguments = [values.get(name) for name in code.co_varnames[:named]]
    if code.co_flags & CO_VARARGS:
        arguments += values.get(code.co_varnames[named]) or ()
    return any(isinstance(argument, FrameType) for argument in arguments)
