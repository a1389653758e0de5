"""The folder of an embedded broker: whose it is, what lies in it, who holds its locks.

::

    broker.sock       the server's only door
    appendonlydir/    its data (Redis before 7: appendonly.aof)
    server.lock       held by the server
    keeper.lock       held by the keeper, which writes in it what it has started
    start.lock        held by a process that is starting a keeper: the others wait
    stamp             which server, in which version, has written the data
    failure           the last failure, and until when it is not tried again
    broker.log        what keeper and server say
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

from ..errors import BrokerUnavailable, ConfigurationError
from .keeper import PAUSE_S, STARTS_WITHIN_S, open_own, read_state, write_state

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEME = "reliq-embedded"
# What fits into the address of a socket everywhere.
_LONGEST_PATH = 100
_OTHERS_WRITE = 0o022


@functools.cache
def boot_id() -> str:
    """Return what this start of this machine's kernel is called; "" where it is not told."""
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
        return f"{SCHEME}:///{self.path}"

    def at(self, name: str) -> str:
        """Return the path of something in it."""
        return os.path.join(self.path, name)  # noqa: PTH118 - on every connect

    def require(self, *, create: bool) -> os.stat_result:
        """Raise ConfigurationError unless it is a folder of this user's own; *create* makes it."""
        try:
            try:
                found = os.stat(self.path)  # noqa: PTH116 - on every connect
            except FileNotFoundError:
                if not create:
                    raise ConfigurationError(
                        f"{self}: there is no such folder: correct the URL, or start the "
                        "application, which creates it"
                    ) from None
                with suppress(FileExistsError):
                    Path(self.path).mkdir(0o700)
                    Path(self.path).chmod(0o700)  # whatever the umask
                found = Path(self.path).stat()
        except OSError as exc:
            raise ConfigurationError(
                f"{self}: the folder cannot be opened or created ({exc.strerror}): create its "
                "parent, let this user write there, or correct the URL"
            ) from exc
        if not stat.S_ISDIR(found.st_mode):
            raise ConfigurationError(f"{self}: expected a folder, found something else")
        if found.st_uid != os.geteuid():
            raise ConfigurationError(
                f"{self}: the folder is that of {_user(found.st_uid)}, who alone may open it: run "
                f"this as {_user(found.st_uid)} (this is {_user(os.geteuid())})"
            )
        if found.st_mode & _OTHERS_WRITE:
            raise ConfigurationError(
                f"{self}: other users may write into the folder: chmod 700 it, if what is in it "
                "is yours"
            )
        return found

    def open(self, name: str, flags: int) -> int:
        """Open a file in it; raises ConfigurationError for one of another user, or no file."""
        try:
            return open_own(self.at(name), flags)
        except PermissionError as exc:
            raise self._foreign(exc) from exc

    def _foreign(self, said: object) -> ConfigurationError:
        return ConfigurationError(
            f"{self}: {said}: it was left as it is. Find out whose it is; remove it"
        )

    def state_of(self, lock: str) -> dict[str, Any] | None:
        """Return what the holder of a lock has written in it; None where nobody holds it."""
        try:
            descriptor = self.open(lock, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return read_state(descriptor)
        finally:
            os.close(descriptor)
        return None

    def keeper(self) -> dict[str, Any] | None:
        """Return the state that the keeper tells; None without one.

        Raises ConfigurationError where it is one of another machine.
        """
        said = self.state_of("keeper.lock")
        if said is not None and said.get("boot", "") not in {"", boot_id()}:
            time.sleep(0.1)  # one that has just begun has not overwritten what stood there
            said = self.state_of("keeper.lock")
            if said is not None and said.get("boot", "") not in {"", boot_id()}:
                raise ConfigurationError(
                    f"{self}: a broker on another machine uses this folder, and only one may: "
                    "name a folder on a disk of this machine, or use a Redis (reliq://)"
                )
        return said

    @contextmanager
    def socket(self) -> Iterator[str]:
        """Lend a path of the socket that fits into an address.

        Raises FileNotFoundError without one, ConfigurationError for something in its place.
        """
        path = self.at("broker.sock")
        found = os.lstat(path)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise self._foreign(f"{path} is not this user's own socket")
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

    # -- failures

    def last_failure(self) -> dict[str, Any]:
        """Return when the last failure was, until when it counts, and its text; {} without one."""
        try:
            descriptor = self.open("failure", os.O_RDONLY)
        except FileNotFoundError:
            return {}
        try:
            return read_state(descriptor)
        finally:
            os.close(descriptor)

    def raise_remembered(self) -> None:
        """Raise BrokerUnavailable with the last failure while it is too young to try again."""
        said = self.last_failure()
        left_s = float(said.get("until", 0)) - time.time()
        if 0 < left_s <= PAUSE_S + STARTS_WITHIN_S:
            raise BrokerUnavailable(f"{self}: {said.get('text')}. {self.remedy()}")

    def remember(self, text: str) -> BrokerUnavailable:
        """Return the error of a failure, which others get at once for a while."""
        now, descriptor = time.time(), self.open("failure", os.O_RDWR | os.O_CREAT)
        write_state(descriptor, {"at": now, "until": now + PAUSE_S, "text": text})
        os.close(descriptor)
        return BrokerUnavailable(f"{self}: {text}. {self.remedy()}")

    def remedy(self) -> str:
        """Return where to look, and how to mend."""
        path = self.at("broker.log")
        return f"Its log: {path}. Damaged data is mended by: reliq embedded repair {self.path}"


def folder_of(path: str | None) -> Folder:
    """Return the folder at *path*: what follows ``reliq-embedded:///``, unquoted.

    Relative to the working directory; ~ is the home. Raises ConfigurationError.
    """
    if not path or path == "/":
        raise ConfigurationError(
            f"expected a folder in the URL: {SCHEME}:////absolute/folder, or {SCHEME}:///relative"
        )
    if "\0" in path:
        raise ConfigurationError(f"expected a path without NUL in the URL, got: {path!r}")
    try:
        return Folder(str(Path(path).expanduser().resolve()))
    except RuntimeError as exc:
        raise ConfigurationError(f"{SCHEME}:///{path}: {exc}; name an absolute path") from exc


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name!r}"
    except KeyError:
        return f"user {number}"
