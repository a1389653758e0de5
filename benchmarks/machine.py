"""Names the machine, the versions and the server settings of a run."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.servers import SETTINGS, Server

PACKAGES = ("reliq", "kombu", "celery", "redis", "hiredis", "msgpack")


def describe(server: Server) -> dict[str, str]:
    """Return what a reader needs to judge the numbers, by name."""
    described = {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{_memory_gib():.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    described |= {package: _version(package) for package in PACKAGES}
    described["redis-server"] = server.version
    settings = ", ".join(f"{name} {value}" for name, value in SETTINGS.items())
    described["server settings"] = f"{settings}; otherwise Redis's defaults"
    return described


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
