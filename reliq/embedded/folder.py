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
import functools
import os
import pwd
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..errors import BrokerUnavailable, ConfigurationError
from .keeper import PAUSE_S, open_own, read_state, write_state

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEME = "reliq-embedded"
# The longest path that fits into the address of a socket everywhere.
_LONGEST_PATH = 100
_OTHERS_WRITE = 0o022


@functools.cache
def boot_id() -> str:
    """Return the name of this start of this machine's kernel; "" where it has none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    with suppress(OSError):
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]  # macOS
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    return ""


@dataclass(frozen=True, slots=True)
class Folder:
    """The place of one broker; its path is absolute, and holds nothing secret."""

    path: str

    def __str__(self) -> str:
        """Return the URL that names it."""
        return f"{SCHEME}:///{quote(os.fsencode(self.path))}"

    def at(self, name: str) -> str:
        """Return the path of something in it."""
        return os.path.join(self.path, name)  # noqa: PTH118 - on every connect

    def require(self, *, create: bool) -> os.stat_result:
        """Raise ConfigurationError unless it is a folder of this user's own; *create* makes it."""
        try:
            if create:
                with suppress(FileExistsError):
                    Path(self.path).mkdir(0o700)
                    Path(self.path).chmod(0o700)  # whatever the umask
            found = os.stat(self.path)  # noqa: PTH116 - on every connect
        except OSError as exc:
            raise ConfigurationError(
                f"{self}: there is no such folder, nor can it be made ({exc.strerror}): correct "
                "the URL, create its parent and let this user write there, or start the "
                "application, which creates it"
            ) from exc
        if not stat.S_ISDIR(found.st_mode):
            raise ConfigurationError(f"{self}: expected a folder, found something else")
        if found.st_uid != os.geteuid():
            raise ConfigurationError(
                f"{self}: the folder is that of {_user(found.st_uid)}, who alone may open it: run "
                f"this as {_user(found.st_uid)} (this is {_user(os.geteuid())})"
            )
        if found.st_mode & _OTHERS_WRITE:
            raise ConfigurationError(f"{self}: other users may write into it: chmod 700 it")
        return found

    def open(self, name: str, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        """Open a file in it; raises ConfigurationError for one of another user, or no file."""
        try:
            return open_own(self.at(name), flags)
        except PermissionError as exc:
            raise ConfigurationError(f"{self}: {exc}: find out whose it is; remove it") from exc

    def read(self, name: str) -> tuple[dict[str, Any], bool]:
        """Return what a file says, and whether a process holds its lock."""
        try:
            descriptor = self.open(name, os.O_RDWR)
        except FileNotFoundError:
            return {}, False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return read_state(descriptor), True
        else:
            return read_state(descriptor), False
        finally:
            os.close(descriptor)

    def keeper(self) -> dict[str, Any] | None:
        """Return the state of the keeper; None without one.

        Raises ConfigurationError where it is one of another machine.
        """
        for _ in range(2):
            state, held = self.read("keeper.lock")
            if not held:
                return None
            if state.get("boot", "") in {"", boot_id()}:
                return state
            time.sleep(0.1)  # one that has just begun has not overwritten what stood there
        raise ConfigurationError(
            f"{self}: a broker on another machine uses this folder, and only one may: name a "
            "folder on a disk of this machine, or use a Redis (reliq://)"
        )

    def note(self, **changes: object) -> None:
        """Change the state: the keeper, and whoever comes next, read it."""
        descriptor = self.open("keeper.lock")
        write_state(descriptor, {**read_state(descriptor), **changes})
        os.close(descriptor)

    @contextmanager
    def socket(self) -> Iterator[str]:
        """Lend a path of the socket that fits into an address.

        Raises FileNotFoundError without one, ConfigurationError for something in its place.
        """
        path = self.at("broker.sock")
        found = os.lstat(path)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise ConfigurationError(f"{self}: {path} is not this user's own socket; remove it")
        if len(os.fsencode(path)) <= _LONGEST_PATH:
            yield path
        elif sys.platform == "linux":
            descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                yield f"/proc/self/fd/{descriptor}/broker.sock"
            finally:
                os.close(descriptor)
        else:
            with tempfile.TemporaryDirectory(prefix="reliq-") as place:
                link = Path(place) / "f"
                link.symlink_to(self.path)
                yield str(link / "broker.sock")

    def raise_remembered(self) -> None:
        """Raise BrokerUnavailable with the last failure while it is too young to try again."""
        state, _ = self.read("keeper.lock")
        if 0 <= time.time() - float(state.get("failed_at", 0)) < PAUSE_S:
            raise BrokerUnavailable(f"{self}: {state['failed']}. {self.remedy()}")

    def remember(self, text: str) -> BrokerUnavailable:
        """Return the error of a failure, which others get at once for a while."""
        self.note(failed=text, failed_at=time.time())
        return BrokerUnavailable(f"{self}: {text}. {self.remedy()}")

    def remedy(self) -> str:
        """Return where to look, and how to mend."""
        path = self.at("broker.log")
        return f"Its log: {path}. Damaged data is mended by: reliq embedded repair {self.path}"


def folder_of(path: str | None) -> Folder:
    """Return the folder at *path*: the URL after ``reliq-embedded:///``, unquoted.

    Relative to the working directory; ~ is the home. Raises ConfigurationError.
    """
    if not path or path == "/" or "\0" in path:
        raise ConfigurationError(
            f"expected a folder in the URL: {SCHEME}:////absolute/folder, or {SCHEME}:///relative; "
            f"got: {path!r}"
        )
    try:
        return Folder(str(Path(path).expanduser().resolve()))
    except RuntimeError as exc:
        raise ConfigurationError(f"{SCHEME}:///{path}: {exc}; name an absolute path") from exc


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name!r}"
    except KeyError:
        return f"user {number}"
