"""The command line: ``reliq status``, ``reliq dead list``, ``reliq doctor`` and the rest."""

from .commands import main

__all__ = ["main"]
