"""The command line: ``reliq status``, ``reliq dead list``, ``reliq doctor`` and the rest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .commands import main

__all__ = ["main"]


def __getattr__(name: str) -> Any:
    """Load the commands when one is run: Celery loads this package with every command of its."""
    if name == "main":
        try:
            from .commands import main  # noqa: PLC0415 - see above
        except (KeyboardInterrupt, RuntimeError) as error:
            # While it is loaded, which may take a second; see .endings for the latter.
            if not isinstance(error.__cause__ or error, KeyboardInterrupt):
                raise
            sys.stderr.write("\ninterrupted\n")
            raise SystemExit(130) from None
        return main
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
