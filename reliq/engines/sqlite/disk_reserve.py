"""The reserve: room beside the file that is given up when the disk is full.

Whoever takes or finishes a message writes to SQLite's log first, and on a full disk that
fails like a publish. So some MB are allocated beside the file: a transaction that gives out,
finishes or returns messages, or moves them away, gives them up and is done again;
publishes are refused until there is room for them anew. Knows nothing of tables.
"""

from __future__ import annotations

import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from ...errors import BrokerUnavailable
from .location import DiskFull

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Roomy")

# Twice what the log holds before it is written to the file: once for the log, once for what
# the file grows by then.
SIZE = 8 << 20
# Never through a link: it may be another's, in a directory that others write to.
_FLAGS = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class DiskReserve:
    """The file that takes up the room."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}-reserve"

    def keep(self) -> bool:
        """Have the room, now or since long ago; False where the disk has none."""
        try:
            if os.stat(self._path).st_size == SIZE:  # noqa: PTH116 - with every publish
                return True
        except OSError:
            pass
        try:
            fd = os.open(self._path, _FLAGS, 0o600)
            try:
                _allocate(fd)
            finally:
                os.close(fd)
        except OSError:
            self.give_up()
            return False
        return True

    def give_up(self) -> bool:
        """Let the room go; False when it was not kept."""
        try:
            Path(self._path).unlink()
        except OSError:
            return False
        return True


def _allocate(fd: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, SIZE)
        return
    block = b"\0" * (1 << 16)  # not everywhere a file without holes can be asked for
    os.lseek(fd, 0, os.SEEK_SET)
    for _ in range(SIZE // len(block)):
        os.write(fd, block)


class Roomy(Protocol):
    """Who makes transactions."""

    def make_room(self) -> None:
        """Give up the reserve."""


def essential(transaction: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Do *transaction* with the room of the reserve where the disk is full.

    Raises BrokerUnavailable where that does not help: nothing was done, and what it was
    for is tried again over the next connection.
    """

    @wraps(transaction)
    def done_surely(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return transaction(self, *args, **kwargs)
        except DiskFull:
            self.make_room()
        try:
            return transaction(self, *args, **kwargs)
        except DiskFull as exc:
            raise BrokerUnavailable(str(exc)) from exc

    return done_surely
