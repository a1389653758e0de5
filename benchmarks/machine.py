"""Describes the machine and the versions of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from reliq import __version__

PACKAGES = ("kombu", "celery", "redis", "hiredis", "msgpack", "amqp", "SQLAlchemy")


def describe() -> dict[str, str]:
    """Return the facts that a reader needs to judge the numbers, by name."""
    described = {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
        "memory": f"{_memory_gib():.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    described["reliq"] = __version__
    return described | {package: _version(package) for package in PACKAGES}


def commit() -> str:
    """Return the present commit, and whether files differ from it; "" outside of a clone."""
    git = ["git", "-C", str(Path(__file__).resolve().parent)]
    try:
        name, changes = (
            subprocess.run([*git, *asked], capture_output=True, text=True, check=True).stdout
            for asked in (
                ("rev-parse", "--short=12", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return name.strip() + (", with changes" if changes else "")


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
