"""The command line: ``reliq demo``, ``reliq audit``, ``reliq status``."""

from .commands import main

__all__ = ["main"]
