"""What an interrupt is. Imports nothing: it is looked at before the commands are loaded."""

from __future__ import annotations

INTERRUPTED = 130
"""The code with which a command ends at Ctrl-C."""


def is_interrupt(error: BaseException) -> bool:
    """Whether *error* is Ctrl-C, or what Python has made of it.

    Before 3.12 it makes RuntimeError of what it meets while a class is made, in a late import.
    """
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)
