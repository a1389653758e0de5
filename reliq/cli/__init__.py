"""The command line: ``reliq status``, ``reliq dead list``, ``reliq doctor`` and the rest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .interrupts import INTERRUPTED, is_interrupt

if TYPE_CHECKING:
    from .commands import main

__all__ = ["main"]


def __getattr__(name: str) -> Any:
    """Load the commands when one is run: Celery loads this package with every command of its."""
    if name == "main":
        try:
            from .commands import main  # noqa: PLC0415 - see above
        except (KeyboardInterrupt, RuntimeError) as error:
            if not is_interrupt(error):  # while it is loaded, which may take a second
                raise
            sys.stderr.write("\ninterrupted\n")
            raise SystemExit(INTERRUPTED) from None
        return main
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
