"""The producers' gate: one byte of a memory-mapped file, read before every publish."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WAIT, PUBLISH, END = 0, 1, 2


class Gate:
    """Set by the run, and read by producers in other processes."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes([WAIT]))
        with path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)

    @property
    def state(self) -> int:
        """The state that producers must obey."""
        return self._byte[0]

    @state.setter
    def state(self, value: int) -> None:
        self._byte[0] = value
