"""The folder of an embedded broker: its owner, its files, the holders of its locks.

::

    broker.sock       the server's only door
    appendonlydir/    its data (Redis before 7: appendonly.aof)
    server.lock       held by the server
    keeper.lock       held by the keeper; its text is the state, with the last failure
    start.lock        held by a process that is starting a keeper: the others wait
    stamp             which server, in which version, has written the data
    broker.log        the words of keeper and server
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..errors import BrokerUnavailable, ConfigurationError
from .keeper import lock, read_state

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEME = "reliq-embedded"
# The longest path that fits into the address of a socket everywhere.
_LONGEST_PATH = 100
_FILES = ("broker.sock", "broker.log", "keeper.lock", "server.lock", "start.lock")
_KINDS = {stat.S_IFREG, stat.S_IFSOCK}


def boot_id() -> str:
    """Return the name of this start of this machine's kernel; "" where it has none."""
    place = Path("/proc/sys/kernel/random/boot_id")
    return place.read_text("ascii").strip() if place.exists() else ""


@dataclass(frozen=True, slots=True)
class Folder:
    """The place of one broker; its path is absolute, and holds nothing secret."""

    path: str

    def __str__(self) -> str:
        """Return the URL that names it."""
        return f"{SCHEME}:///{quote(os.fsencode(self.path))}"

    def at(self, name: str) -> str:
        """Return the path of something in it."""
        return f"{self.path}/{name}"

    def require(self, *, create: bool) -> tuple[int, int]:
        """Return its device and inode; raises ConfigurationError unless it is this user's own."""
        user = os.geteuid()
        try:
            if create:
                Path(self.path).mkdir(0o700, exist_ok=True)
            found = os.stat(self.at(""))  # noqa: PTH116 - on every connect
        except OSError as exc:
            raise ConfigurationError(
                f"{self}: there is no such folder ({exc.strerror}): create its parent and let this "
                "user write there, or start the application, which creates it"
            ) from exc
        if found.st_uid != user or found.st_mode & 0o022:
            raise ConfigurationError(
                f"{self}: it is not this user's alone: run this as user {found.st_uid} (this is "
                f"user {user}), and chmod 700 it"
            )
        for name in _FILES:
            with suppress(FileNotFoundError):
                there = os.lstat(self.at(name))
                if there.st_uid != user or stat.S_IFMT(there.st_mode) not in _KINDS:
                    raise ConfigurationError(
                        f"{self}: {name} is not this user's: find out whose it is; remove it"
                    )
        return found.st_dev, found.st_ino

    def read(self, name: str) -> tuple[dict[str, Any], bool]:
        """Return what a file says, and whether a process holds its lock."""
        with suppress(FileNotFoundError), open(self.at(name), "rb") as file:  # noqa: PTH123
            held = not lock(file.fileno(), 0, fcntl.LOCK_SH)
            return read_state(file.fileno()), held
        return {}, False

    def state(self) -> dict[str, Any]:
        """Return the state, "kept": whether a keeper, and "runs": whether a server is there.

        Raises ConfigurationError where they are those of another machine.
        """
        for _ in range(10):
            state, kept = self.read("keeper.lock")
            runs = self.read("server.lock")[1]
            if not (kept or runs) or state.get("boot", "") in {"", boot_id()}:
                return {**state, "kept": kept, "runs": runs}
            time.sleep(0.1)  # a keeper that has just begun has not overwritten what stood there
        raise ConfigurationError(
            f"{self}: a broker on another machine uses this folder, and only one may: name a "
            "folder on a disk of this machine, or use a Redis (reliq://)"
        )

    @contextmanager
    def socket(self) -> Iterator[str]:
        """Lend a path of the socket that fits into an address.

        Raises BrokerUnavailable without one.
        """
        path = self.at("broker.sock")
        if not os.path.exists(path):  # noqa: PTH110 - on every connect
            raise BrokerUnavailable(
                f"{self}: it does not run, and looking at it does not start it: start the "
                f"application, or: reliq embedded run {self.path}"
            )
        if len(os.fsencode(path)) <= _LONGEST_PATH:
            yield path
            return
        if sys.platform != "linux":
            raise ConfigurationError(f"{self}: its path is too long here: name a shorter one")
        descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/broker.sock"
        finally:
            os.close(descriptor)

    def broken(self, text: str) -> BrokerUnavailable:
        """Return an error that says where to look, and how to mend."""
        return BrokerUnavailable(
            f"{self}: {text}. Its log: {self.at('broker.log')}. Damaged data is mended by: "
            f"reliq embedded repair {self.path}"
        )


def folder_of(path: str | None) -> Folder:
    """Return the folder at *path*: the URL after ``reliq-embedded:///``, unquoted.

    Relative to the working directory; ~ is the home. Raises ConfigurationError.
    """
    if not path or path == "/" or "\0" in path:
        raise ConfigurationError(
            f"expected a folder in the URL: {SCHEME}:////absolute/folder, or {SCHEME}:///relative; "
            f"got: {path!r}"
        )
    return Folder(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111 - without a home, too
