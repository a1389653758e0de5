"""The folder of an embedded broker: its owner, its files and its locks.

::

    broker.sock       the only socket of the server
    appendonlydir/    the data (Redis before 7: appendonly.aof)
    server.lock       held by the server
    keeper.lock       held by the keeper; contains the state with the last failure
    start.lock        held by a process that starts a keeper, while other processes wait
    run.lock          held by ``reliq embedded run``
    stamp             the name and version of the server that wrote the data
    broker.log        the log of keeper and server
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

from ..errors import BrokerUnavailable, ConfigurationError, ReliqError
from .keeper import lock, read_state

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEME = "reliq-embedded"
# The longest socket path, in bytes, that every system accepts.
_LONGEST_PATH = 100
_FILES = ("broker.sock", "broker.log", "keeper.lock", "server.lock", "start.lock", "run.lock")
_KINDS = {stat.S_IFREG, stat.S_IFSOCK}


def boot_id() -> str:
    """Return the boot id of this machine's kernel; "" if there is none."""
    place = Path("/proc/sys/kernel/random/boot_id")
    return place.read_text("ascii").strip() if place.exists() else ""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of one broker. Its path is absolute, and contains no secret."""

    path: str

    def __str__(self) -> str:
        """Return its URL."""
        return f"{SCHEME}:///{quote(os.fsencode(self.path))}"

    def at(self, name: str) -> str:
        """Return the path of one of its files."""
        return f"{self.path}/{name}"

    def require(self, *, create: bool) -> tuple[int, int]:
        """Return its device and inode; raises ConfigurationError if others may write to it."""
        user = os.geteuid()
        try:
            if create:
                Path(self.path).mkdir(0o700, exist_ok=True)
            status = os.stat(self.at(""))  # noqa: PTH116 - on every connect
        except OSError as exc:
            remedy = "create its parent directory, writable for this user"
            if not create:
                remedy = "check the path; an application creates the folder when it connects"
            raise ConfigurationError(f"{self}: no such folder ({exc.strerror}): {remedy}") from exc
        if status.st_uid != user or status.st_mode & 0o022:
            raise ConfigurationError(
                f"{self}: other users own it or may write to it: run this as user {status.st_uid} "
                f"(this is user {user}), and chmod 700 the folder"
            )
        for name in _FILES:
            with self.translated(), suppress(FileNotFoundError):
                there = os.lstat(self.at(name))
                if there.st_uid != user or stat.S_IFMT(there.st_mode) not in _KINDS:
                    raise ConfigurationError(
                        f"{self}: {name} is no file of this user: check its origin, and remove it"
                    )
        return status.st_dev, status.st_ino

    def read(self, name: str) -> tuple[dict[str, Any], bool]:
        """Return the JSON object in a file, and whether a process holds the file's lock."""
        with (
            self.translated(),
            suppress(FileNotFoundError),
            open(self.at(name), "rb") as file,  # noqa: PTH123
        ):
            held = not lock(file.fileno(), 0, fcntl.LOCK_SH)
            return read_state(file.fileno()), held
        return {}, False

    def state(self) -> dict[str, Any]:
        """Return the state. "kept": whether a keeper runs. "runs": whether a server runs.

        Raises ConfigurationError if they run on another machine.
        """
        for _ in range(10):
            state, kept = self.read("keeper.lock")
            runs = self.read("server.lock")[1]
            if not (kept or runs) or state.get("boot", "") in {"", boot_id()}:
                return {**state, "kept": kept, "runs": runs}
            time.sleep(0.1)  # a keeper that has just started may not have replaced the old state
        raise ConfigurationError(
            f"{self}: a broker on another machine uses this folder: use a folder on a disk of this "
            "machine, or a Redis server (reliq://)"
        )

    @contextmanager
    def socket(self) -> Iterator[str]:
        """Yield a short path of the socket, to connect to; raises BrokerUnavailable without one."""
        path = self.at("broker.sock")
        if not os.path.exists(path):  # noqa: PTH110 - on every connect
            raise BrokerUnavailable(
                f"{self}: the broker does not run, and a read-only command does not start it: "
                f"start the application, or: reliq embedded run {self.path}"
            )
        if len(os.fsencode(path)) <= _LONGEST_PATH:
            yield path
            return
        if sys.platform != "linux":
            raise ConfigurationError(f"{self}: its path is too long: use a shorter one")
        descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/broker.sock"
        finally:
            os.close(descriptor)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise BrokerUnavailable for an error of the file system in the block."""
        try:
            yield
        except OSError as exc:
            if isinstance(exc, ReliqError):
                raise
            raise BrokerUnavailable(
                f"{self}: {exc}: let this user write to the folder, and check its disk: it may be "
                "full, read-only or damaged"
            ) from exc

    def broken(self, text: str) -> BrokerUnavailable:
        """Return an error that names the log and the command to repair the data."""
        return BrokerUnavailable(
            f"{self}: {text}. Log: {self.at('broker.log')}. To repair damaged data: "
            f"reliq embedded repair {self.path}"
        )


def folder_of(path: str | None) -> Folder:
    """Return the folder at *path*: the unquoted part of the URL after ``reliq-embedded:///``.

    A path may be relative to the working directory or to ~. Raises ConfigurationError.
    """
    if not path or path == "/" or "\0" in path:
        raise ConfigurationError(
            f"expected a folder in the URL: {SCHEME}:////absolute/folder, or {SCHEME}:///relative; "
            f"got: {path!r}"
        )
    if "\ufffd" in path:  # Kombu has replaced bytes
        raise ConfigurationError(
            f"the folder's name in the URL is not UTF-8: {path!r}; use a symbolic link to it"
        )
    return Folder(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111 - without a home, too
