"""Filling a disk."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def fill(path: Path) -> None:
    """Fill the remaining space with one file."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 9):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
